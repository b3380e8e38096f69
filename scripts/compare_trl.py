"""Compare the first updates on preferences with TRL's DPO and KTO trainers.

    mindrl tiny --output .cache/tiny
    python scripts/compare_trl.py [--trl PYTHON] [--updates 5] [--json FILE] [key=value ...]

Both train the tiny model on the same rows in the same order with AdamW in float32. A line has the
largest relative difference of the losses and of the norms of the gradients. PYTHON is an
interpreter that has TRL; key=value are overrides of mindrl's run, such as a layout.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import starmap
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from tiny_runs import CHECKOUT, STEPS_ALONE, recorded, trained

TINY = CHECKOUT / ".cache/tiny"
FORMS = ("sigmoid", "sigmoid_norm", "ipo", "hinge", "kto")
ROWS, LR, BETA = 16, 1e-3, 0.1
EPS = 1e-2
Updates = list[tuple[float, float]]
"""Loss, and norm of the gradient before it is clipped."""


def main() -> int:
    """Compare all forms; return the exit code."""
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
        for form in track(FORMS, "forms of the loss", console=Console(stderr=True)):
            data = Path(work, f"{form}.jsonl")
            rows = rows_of(form, ROWS * options.updates)
            data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            ours = of_mindrl(form, data, options.updates, overrides)
            theirs = of_rival(options.trl, form, data, options.updates)
            found[form] = {"mindrl": ours, "TRL": theirs}
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


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


def of_mindrl(form: str, data: Path, updates: int, overrides: list[str]) -> Updates:
    """Train with mindrl."""
    folder = data.with_suffix("")
    common = [
        *("--config-name", "dpo_tiny_cpu", *STEPS_ALONE, f"megatron_training.data_path={data}"),
        f"megatron_training.train_iters={updates}",
        *("megatron_training.no_shuffle=true", f"megatron_training.global_batch_size={ROWS}"),
        *(f"rl_config.mini_batch_size={ROWS}", f"actor_config.lr={LR}"),
        *("actor_config.lr_decay_style=constant", "actor_config.lr_warmup_fraction=0"),
        # Wide, so that the step of a gradient near zero does not hang on its rounding.
        f"actor_config.adam_eps={EPS}",
        *(f"preference_config.loss={form}", f"preference_config.beta={BETA}"),
    ]
    trained(folder, *common, *overrides, program="cli/train.py")
    return [(row["preference/loss"], row["update/grad_norm"]) for row in recorded(folder)]


def of_rival(python: str, form: str, data: Path, updates: int) -> Updates:
    """Train with TRL, in an interpreter that has it."""
    line = [python, __file__.replace("compare_trl", "trl_preferences"), form, str(data)]
    work = json.dumps({"updates": updates, "rows": ROWS, "lr": LR, "beta": BETA, "eps": EPS})
    done = subprocess.run([*line, work], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


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
