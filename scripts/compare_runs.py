"""Prove that a change does not alter the numbers of runs: compare short runs before and after it.

    python scripts/compare_runs.py b87699c               # that revision against the working tree
    python scripts/compare_runs.py b87699c HEAD --only ppo
    python scripts/compare_runs.py b87699c --set actor_config.lr_decay_style=constant

grpo     two workers, TP 2 in training and TP 1 in rollout
moe      experts divided over two workers in training, each expert sharded in rollout
ppo      actor, reference and critic on two workers
dapo     groups without a signal are replaced (dynamic sampling)
partial  responses continue in the next step
ahead    rollout on a separate worker, one step ahead of training
apart    the same in turns
async    the same with continuous generation; a run is repeatable only if no token is older than
         its step
sft      answers of the rows, on two workers
lora     adapters on two workers, with the base model as the reference
archon   the PyTorch-native engine, FSDP on two workers

Both revisions make each run with the data and models of the quickstarts. All responses, rewards,
metrics (except seconds, rates and memory of processes) and exported weights must be bitwise equal.
Metrics that only the second revision has are printed and are no difference. The exit code is 1 if
there is a difference.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from revisions import checkout, make_tiny_models, run_program, tiny_paths
from rich.console import Console
from safetensors.torch import load_file

CONSOLE = Console(highlight=False, soft_wrap=True)
_APART = (
    "rl_config.use_integrated_worker=false",
    "rl_config.actor_resource.num_npus=1",
    "rl_config.rollout_resource.num_npus=1",
)
RUNS = {
    "grpo": ("train_grpo", "grpo_tiny_cpu", ("actor_config.tensor_model_parallel_size=2",)),
    "moe": ("train_grpo", "grpo_tiny_moe_cpu", ()),
    "ppo": ("train_ppo", "ppo_tiny_cpu", ()),
    "dapo": ("train_grpo", "grpo_tiny_cpu", ("rl_config.filter_groups_enable=true",)),
    "partial": ("train_grpo", "grpo_tiny_cpu", ("rl_config.partial_rollout=true",)),
    "ahead": ("train_grpo", "grpo_tiny_cpu", (*_APART, "rl_config.step_order=one_step_off")),
    "apart": ("train_grpo", "grpo_tiny_cpu", _APART),
    "async": (
        *("train_grpo", "grpo_tiny_cpu"),
        (*_APART, "rl_config.step_order=asynchronous", "rl_config.max_staleness=0"),
    ),
    "sft": ("train_sft", "sft_tiny_cpu", ()),
    "lora": (
        *("train_grpo", "grpo_tiny_cpu"),
        ("actor_config.lora.r=8", "rl_config.init_kl_coef=0.05", "rl_config.mini_batch_size=16"),
    ),
    "archon": ("train_grpo", "grpo_tiny_cpu", ("actor_config.backend=archon:d2",)),
}
UNTIMED = (
    "seconds/",
    "throughput/",
    "memory/",
    "idle/",
    "turns/environment_seconds",
    "turns/idle_seconds",
)
SAMPLE_KEYS = ("step", "prompt", "response", "reward", "parts", "finished", "response_tokens")


def main() -> int:
    """Compare; return the exit code."""
    options = _options()
    make_tiny_models()
    differences = 0
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = [
            stack.enter_context(checkout(revision, work / name))
            for name, revision in (("before", options.before), ("after", options.after))
        ]
        for name in options.only or RUNS:
            folders = [_run(name, side, work, options) for side in sides]
            found = [*_differences(*folders)]
            differences += len(found)
            CONSOLE.print(f"{name}: {f'{len(found)} differences' if found else 'bitwise equal'}")
            for line in found:
                CONSOLE.print(f"  {line}", markup=False)
    return min(differences, 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="revision to compare with")
    parser.add_argument("after", nargs="?", help="revision; default: the working tree")
    parser.add_argument("--only", nargs="+", choices=RUNS, help="default: all")
    parser.add_argument("--steps", type=int, default=3, help="steps per run (default: 3)")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of both sides"
    )
    return parser.parse_args()


def _run(name: str, code: Path, work: Path, options: argparse.Namespace) -> Path:
    """Make a run with the code in a folder; return the folder of the run."""
    program, config, overrides = RUNS[name]
    folder = work / f"{code.name}-{name}"
    CONSOLE.print(f"{name}: {options.steps} steps of {config} with {code}", style="dim")
    command = [
        *(f"cli/{program}.py", "--config-name", config),
        *tiny_paths("moe_model" if name == "moe" else "model"),
        f"megatron_training.train_iters={options.steps}",
        "rl_config.log_samples=1000000",
        f"hydra.run.dir={folder}",
        *overrides,
        *options.set,
    ]
    log = folder.with_suffix(".txt")
    ended = run_program(code, command, log)
    if ended:
        CONSOLE.print(log.read_text(), markup=False)
        raise SystemExit(f"{name} with {code} ended with {ended}")
    return folder


def _differences(before: Path, after: Path) -> Iterator[str]:
    """Yield the differences between two run folders."""
    yield from _metrics_apart(_lines(before / "metrics.jsonl"), _lines(after / "metrics.jsonl"))
    for name in ("samples.jsonl", "evaluations.jsonl"):
        if _samples(before / name) != _samples(after / name):
            yield f"{name}: different responses or rewards"
    for model in sorted({path.parent.name for path in before.glob("*/*.safetensors")}):
        yield from _weights_apart(before / model, after / model)


def _metrics_apart(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Iterator[str]:
    if len(before) != len(after):
        yield f"metrics.jsonl: {len(before)} lines before, {len(after)} after"
    for ours, theirs in zip(before, after, strict=False):
        for name, value in ours.items():
            if not name.startswith(UNTIMED) and theirs.get(name) != value:
                yield f"step {ours['step']}: {name} was {value}, is {theirs.get(name, 'missing')}"
    new = sorted(
        {name for line in after for name in line} - {name for line in before for name in line}
    )
    if new:
        CONSOLE.print(f"  metrics that are new: {', '.join(new)}", style="dim")


def _samples(path: Path) -> list[str]:
    """Return prompts and responses in an order that does not depend on the file's."""
    return sorted(
        json.dumps([line.get(key) for key in SAMPLE_KEYS], sort_keys=True) for line in _lines(path)
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        # Supervised fine-tuning has no responses.
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _weights_apart(before: Path, after: Path) -> Iterator[str]:
    ours, theirs = _weights(before), _weights(after)
    if ours.keys() != theirs.keys():
        yield f"{before.name}: different tensors"
        return
    other = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    if other:
        yield f"{before.name}: {len(other)} of {len(ours)} tensors, such as {other[0]}"


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


if __name__ == "__main__":
    raise SystemExit(main())
