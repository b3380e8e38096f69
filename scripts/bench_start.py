"""Measure the seconds from the command to the first rollout, against another revision.

    python scripts/bench_start.py d3873cd               # that revision against the working tree
    python scripts/bench_start.py d3873cd HEAD --runs 5 --json results.json

Runs of one step of the tiny model on two workers, of the one side and the other in turn, behind a
run of each that counts for nothing. Worker 0 writes into its log when it is there, and when its
engine has the first weights and takes the first prompts. Medians, and the ratio of the second side
to the first.
"""

import argparse
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from datetime import datetime
from itertools import product
from pathlib import Path

from revisions import checkout, make_tiny_models, run_program, tiny_paths

MARKS = {
    "worker 0 is there": "is ready",
    "first rollout": "phase rollout begins",
}
"""What stands in the log of worker 0 when each moment has come."""
RAN = "whole run"


def main() -> int:
    """Run both sides in turn, print; returns the exit code."""
    options = _options()
    make_tiny_models()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = {
            revision or "working tree": stack.enter_context(checkout(revision, work / name))
            for name, revision in (("before", options.before), ("after", options.after))
        }
        found = alternating(sides, work, options.runs, options.overrides)
    _show(found)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="revision to compare with")
    parser.add_argument("after", nargs="?", help="revision; default: the working tree")
    parser.add_argument("--runs", type=int, default=3, help="of each side (default: 3)")
    parser.add_argument("--json", help="write the seconds of each run there")
    parser.add_argument("--overrides", nargs="+", default=[], metavar="KEY=VALUE")
    return parser.parse_args()


def alternating(
    sides: dict[str, Path], work: Path, runs: int, overrides: list[str]
) -> dict[str, list[dict[str, float]]]:
    """Return the moments of each run of each side, by its name."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number, (name, code) in product(range(runs + 1), sides.items()):
        seconds = moments(code, work / f"{code.name}-{number}", overrides)
        print(f"run {number} of {name}: {seconds['first rollout']:.2f} s", flush=True)
        if number:
            found[name].append(seconds)
    return found


def moments(code: Path, folder: Path, overrides: list[str]) -> dict[str, float]:
    """Return how many seconds behind the command each moment of a run came.

    Raises:
        SystemExit: The run failed.
    """
    command = [
        *("cli/train_grpo.py", "--config-name", "grpo_tiny_cpu", *tiny_paths()),
        *("rl_config.actor_resource.num_npus=2", "megatron_training.train_iters=1"),
        f"hydra.run.dir={folder}",
        *overrides,
    ]
    log, began = folder.with_suffix(".txt"), time.time()
    if ended := run_program(code, command, log):
        raise SystemExit(f"{code} ended with {ended}:\n{log.read_text()}")
    done = time.time() - began
    lines = (folder / "logs/worker_0.log").read_text("utf-8").splitlines()
    found = {
        moment: _seconds(next(line for line in lines if mark in line)) - began
        for moment, mark in MARKS.items()
    }
    return {**found, RAN: done}


def _seconds(line: str) -> float:
    """Return when a line was written: it begins as `2026-11-22 07:00:28,123`."""
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()


def _show(found: dict[str, list[dict[str, float]]]) -> None:
    first, second = found
    print(f"{'median of seconds until':26} {first:>14} {second:>14} {'ratio':>8}")
    for moment in (*MARKS, RAN):
        before, after = (
            statistics.median(run[moment] for run in found[side]) for side in (first, second)
        )
        print(f"{moment:26} {before:14.2f} {after:14.2f} {after / before:8.2f}")


if __name__ == "__main__":
    raise SystemExit(main())
