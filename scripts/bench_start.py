"""Measure the seconds from the command to the first rollout, against another revision.

    python scripts/bench_start.py d3873cd               # that revision against the working tree
    python scripts/bench_start.py d3873cd HEAD --runs 5 --json results.json

Runs one step of the tiny model on two workers, with both revisions in turn, after one warm-up run
of each. The log of worker 0 has the times at which it is ready, and at which its engine has the
first weights and gets the first prompts. Prints medians, and the ratio of the second revision to
the first.
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
"""Text in the log of worker 0 that marks each moment."""
RAN = "whole run"


def main() -> int:
    """Run both revisions in turn and print; return the exit code."""
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
    parser.add_argument("--runs", type=int, default=3, help="runs per revision (default: 3)")
    parser.add_argument("--json", help="also write the seconds of each run to this file")
    parser.add_argument("--overrides", nargs="+", default=[], metavar="KEY=VALUE")
    return parser.parse_args()


def alternating(
    sides: dict[str, Path], work: Path, runs: int, overrides: list[str]
) -> dict[str, list[dict[str, float]]]:
    """Return the moments of each run of each revision, by its name."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number, (name, code) in product(range(runs + 1), sides.items()):
        seconds = moments(code, work / f"{code.name}-{number}", overrides)
        print(f"run {number} of {name}: {seconds['first rollout']:.2f} s", flush=True)
        if number:
            found[name].append(seconds)
    return found


def moments(code: Path, folder: Path, overrides: list[str]) -> dict[str, float]:
    """Return the seconds from the command to each moment of a run.

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
    """Return the time of a line that starts like `2026-11-22 07:00:28,123`."""
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
