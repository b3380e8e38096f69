"""Compare the first updates with TRL's trainers of preferences, reward models and distillation.

    mindrl tiny --output .cache/tiny
    python scripts/compare_trl.py [--trl PYTHON] [--updates 5] [--json FILE] [key=value ...]

Both train the tiny model on the same rows in the same order with AdamW in float32; distillation on
the responses that mindrl's run draws, from a teacher with other weights. A line has the largest
relative difference of the losses and of the norms of the gradients. PYTHON is an interpreter that
has TRL; key=value are overrides of mindrl's run, such as a layout.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors.torch import load_file, save_file
from tiny_runs import CHECKOUT, STEPS_ALONE, recorded, trained
from transformers import AutoModelForSequenceClassification

from mindrl.trainer.rollout_files import RolloutFiles

TINY = CHECKOUT / ".cache/tiny"
PREFERENCES = ("sigmoid", "sigmoid_norm", "ipo", "hinge", "kto", "bradley_terry")
DISTILLATION = ("reverse", "forward")
ROWS, LR, BETA = 16, 1e-3, 0.1
EPS = 1e-2
Updates = list[tuple[float, float]]
"""Loss, and norm of the gradient before it is clipped."""


def main() -> int:
    """Compare all losses; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trl", default=sys.executable, help="interpreter that has TRL")
    parser.add_argument("--updates", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="also write the losses and norms to this file")
    options, overrides = parser.parse_known_args()
    if not (TINY / "data").is_dir():
        print(f"error: {TINY}/data is missing; see the first lines of this file", file=sys.stderr)
        return 2
    found = {}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        models = {"bradley_terry": scorer(folder / "scorer")}
        teacher = changed(folder / "teacher")
        for form in track((*PREFERENCES, *DISTILLATION), "losses", console=Console(stderr=True)):
            common = {"model": str(models.get(form, TINY / "model")), "teacher": str(teacher)}
            run = Run(form=form, updates=options.updates, overrides=overrides, **common)
            data = folder / f"{form}.jsonl"
            ours = distilled(run, data) if form in DISTILLATION else preferred(run, data)
            theirs = of_rival(options.trl, run, data)
            found[form] = {"mindrl": ours, "TRL": theirs}
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """What both train."""

    form: str
    model: str
    teacher: str
    updates: int
    overrides: list[str]

    def settings(self, config: str) -> list[str]:
        """Return mindrl's configuration and its overrides in every comparison."""
        return [
            *("--config-name", config, *STEPS_ALONE, f"actor_config.load={self.model}"),
            f"megatron_training.train_iters={self.updates}",
            *("megatron_training.no_shuffle=true", f"megatron_training.global_batch_size={ROWS}"),
            *(f"rl_config.mini_batch_size={ROWS}", f"actor_config.lr={LR}"),
            *("actor_config.lr_decay_style=constant", "actor_config.lr_warmup_fraction=0"),
            # Wide, so that the step of a gradient near zero does not hang on its rounding.
            f"actor_config.adam_eps={EPS}",
        ]


def scorer(folder: Path) -> Path:
    """Write the tiny model with a drawn score in place of its logits."""
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(TINY / "model", num_labels=1)
    shutil.copytree(TINY / "model", folder)
    model.save_pretrained(folder)
    return folder


def changed(folder: Path) -> Path:
    """Write the tiny model with other weights."""
    shutil.copytree(TINY / "model", folder)
    generator = torch.Generator().manual_seed(1)
    weights = load_file(folder / "model.safetensors")
    for tensor in weights.values():
        tensor.add_(0.5 * tensor.std() * torch.randn(tensor.shape, generator=generator))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def rows_of(form: str, count: int) -> list[dict[str, Any]]:
    """Return rows in TRL's form: chats with pairs, or for KTO with labels in turn."""
    lines = (TINY / "data/train_pairs.jsonl").read_text(encoding="utf-8").splitlines()[:count]

    def of(at: int, row: dict[str, str]) -> dict[str, Any]:
        chat: dict[str, Any] = {"prompt": [{"role": "user", "content": row["prompt"]}]}
        answers = {
            name: [{"role": "assistant", "content": row[name]}] for name in ("chosen", "rejected")
        }
        if form != "kto":
            return chat | answers
        return chat | {
            "completion": answers["rejected" if at % 2 else "chosen"],
            "label": at % 2 == 0,
        }

    return list(starmap(of, enumerate(map(json.loads, lines))))


def preferred(run: Run, data: Path) -> Updates:
    """Train on answers with mindrl, on rows that are written to a file."""
    rows = rows_of(run.form, ROWS * run.updates)
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    scores = run.form == "bradley_terry"
    beta = "center_rewards_coefficient" if scores else "beta"
    trained(
        data.with_suffix(""),
        *run.settings("reward_tiny_cpu" if scores else "dpo_tiny_cpu"),
        f"megatron_training.data_path={data}",
        *(f"preference_config.loss={run.form}", f"preference_config.{beta}={BETA}"),
        *run.overrides,
        program="cli/train.py",
    )
    steps = recorded(data.with_suffix(""))
    return [(step["preference/loss"], step["update/grad_norm"]) for step in steps]


def distilled(run: Run, data: Path) -> Updates:
    """Distil with mindrl over the whole vocabulary; write the responses that it drew to a file."""
    folder = data.with_suffix("")
    vocabulary = json.loads((TINY / "model/config.json").read_text("utf-8"))["vocab_size"]
    trained(
        folder,
        *run.settings("distill_tiny_cpu"),
        f"megatron_training.keep_rollouts={run.updates}",
        *("rl_config.n_samples_per_prompt=1", "rl_config.loss_aggregation=token_mean"),
        *(f"teacher_config.load={run.teacher}", f"teacher_config.divergence={run.form}"),
        f"teacher_config.candidates={vocabulary}",
        *run.overrides,
        program="cli/train.py",
    )
    files = RolloutFiles(folder / "rollouts")
    with data.open("w", encoding="utf-8") as lines:
        for step in files.steps():
            batch = files.read(step)
            drawn = batch.rollouts
            prompts = [batch.prompts[at].token_ids for at in drawn.group_B.tolist()]
            rows = zip(drawn.tokens_BT, drawn.response_mask_BT, strict=True)
            responses = [ids[mask].tolist() for ids, mask in rows]
            lines.write(json.dumps({"prompts": prompts, "responses": responses}) + "\n")
    name = "update/teacher_divergence"
    return [(step[name], step["update/grad_norm"]) for step in recorded(folder)]


def of_rival(python: str, run: Run, data: Path) -> Updates:
    """Train with TRL, in an interpreter that has it."""
    line = [python, str(Path(__file__).with_name("trl_trainers.py")), run.form, str(data)]
    work = {"model": run.model, "teacher": run.teacher, "updates": run.updates}
    work |= {"rows": ROWS, "lr": LR, "beta": BETA, "eps": EPS}
    done = subprocess.run([*line, json.dumps(work)], check=True, stdout=subprocess.PIPE, text=True)
    logged: Updates = json.loads(done.stdout.splitlines()[-1])
    return logged


def show(found: dict[str, dict[str, Updates]]) -> None:
    """Print the largest relative differences over the updates."""
    table = Table("loss", "first loss", "last loss", "losses differ by", "norms differ by")
    for form, both in found.items():
        pairs = [*zip(both["mindrl"], both["TRL"], strict=True)]
        differences = [
            max(abs(ours[at] - theirs[at]) / abs(theirs[at]) for ours, theirs in pairs)
            for at in (0, 1)
        ]
        ends = (f"{both['TRL'][at][0]:.6f}" for at in (0, -1))
        table.add_row(form, *ends, *(f"{each:.1e}" for each in differences))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
