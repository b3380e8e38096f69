"""Measure the cost of a checkpoint for a step, and its bytes.

    python scripts/bench_checkpoint.py [--steps 41] [--json results.json] [override ...]

A run of the tiny model writes a checkpoint after every second step, concurrently with the rollout
of the next step. Steps with and without a checkpoint alternate in one run, so other load on the
machine affects both. The time of each step with a checkpoint is divided by the mean of the previous
and the next step, and the median of these ratios is printed. Bytes: the tensors of all files,
divided by the minimum of 12 bytes per weight: main weight and both moments in float32. Needs the
data and the model of scripts/quickstart.sh.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from tiny_runs import STEPS_ALONE, recorded, trained


def main() -> int:
    """Run, compare and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=41, help="default: %(default)s")
    parser.add_argument("--json", help="also write the figures to this file")
    options, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), options.steps, overrides)
    for name, value in found.items():
        print(f"{name:<28} {value:.4g}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def measured(folder: Path, steps: int, overrides: Sequence[str]) -> dict[str, float]:
    """Run the tiny model and return its figures."""
    own = f"megatron_training.train_iters={steps}", "megatron_training.save_interval=2"
    trained(folder, *STEPS_ALONE, *own, *overrides)
    return compared(recorded(folder)) | {"bytes over the least": bytes_over_least(folder)}


def compared(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Compare steps in which a checkpoint was written with the steps before and after."""
    wrote = "seconds/checkpoint_write"
    # The first steps include work that is done once.
    trios = [
        (before, at, behind)
        for before, at, behind in zip(lines[3:], lines[4:], lines[5:], strict=False)
        if wrote in at and wrote not in before and wrote not in behind
    ]
    ratios = [
        at["seconds/step"] / statistics.mean((before["seconds/step"], behind["seconds/step"]))
        for before, at, behind in trios
    ]
    with_one = [at for _, at, _ in trios]
    return {
        "steps compared": float(len(ratios)),
        "step with over without": statistics.median(ratios),
        "seconds of a step": statistics.median(each["seconds/step"] for each in with_one),
        "seconds of the rollout": statistics.median(each["seconds/rollout"] for each in with_one),
        "seconds of the writing": statistics.median(each[wrote] for each in with_one),
        "seconds waited": statistics.median(each["seconds/checkpoint_wait"] for each in with_one),
    }


def bytes_over_least(folder: Path) -> float:
    """Return the bytes of the newest checkpoint's tensors, divided by the minimum."""
    newest = max((folder / "checkpoints").glob("step-*"))
    written = sum(map(elements, newest.glob("*.safetensors")))
    return written / (3 * elements(folder / "model/model.safetensors"))


def elements(path: Path) -> int:
    """Count the elements of all tensors in a file."""
    with safe_open(path, framework="numpy") as file:
        return sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118 - no mapping


if __name__ == "__main__":
    sys.exit(main())
