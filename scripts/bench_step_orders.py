"""Measure what drawing ahead gains where the rollout has devices of its own, on a long tail.

    python scripts/make_long_tail.py --output .cache/tiny/tail
    python scripts/bench_step_orders.py [--seeds 1 2 3] [--steps 20] [--json FILE] [key=value ...]

The same two processes, one that trains and one that rolls out, in each order of steps, in turns,
from equal seeds. Seconds are those of whole steps behind the second but the last ones, in which
the rollout has nothing left to draw. Runs that are in the JSON file already are not run again.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from bench_partial import PROMPTS, SAMPLES, SKIPPED, TASK
from rich.console import Console
from rich.table import Table
from tiny_runs import kept, recorded, trained

APART = (
    "rl_config.use_integrated_worker=false",
    *("rl_config.actor_resource.num_npus=1", "rl_config.rollout_resource.num_npus=1"),
    "rl_config.rollout_round_steps=16",
)
ORDER = "rl_config.step_order"
LAST = 4
"""Steps at the end that do not count: the largest bound on the age."""
WAYS: dict[str, tuple[str, ...]] = {
    "in turns": APART,
    "one step off": (*APART, f"{ORDER}=one_step_off"),
    **{
        f"asynchronous {age}": (
            *APART,
            f"{ORDER}=asynchronous",
            f"rl_config.max_staleness={age}",
        )
        for age in (1, 2, 4)
    },
}
Figures = dict[str, float]


def main() -> int:
    """Run what is not there yet, in turns, and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=sorted(WAYS), default=list(WAYS))
    parser.add_argument("--steps", type=int, default=20, help="of each run; default: %(default)s")
    parser.add_argument("--json", type=Path, help="figures are kept there, and read again")
    options, overrides = parser.parse_known_args()

    def measured(way: str, seed: int) -> Figures:
        key = "megatron_training"
        own = (f"{key}.seed={seed}", f"{key}.train_iters={options.steps}")
        return figures([*WAYS[way], *own, *overrides])

    turns = [(way, seed) for seed in options.seeds for way in options.only]
    found = kept(turns, measured, options.json)
    shown({way: [found[way, seed] for seed in options.seeds] for way in options.only})
    return 0


def figures(overrides: Sequence[str]) -> Figures:
    """Train once; returns what it took."""
    with tempfile.TemporaryDirectory() as folder:
        trained(Path(folder), *TASK, "megatron_training.export_interval=0", *overrides)
        return of_run(recorded(Path(folder), "step"))


def of_run(rows: Sequence[Mapping[str, float]]) -> Figures:
    """Say what a run took by the lines of its metrics."""
    accuracies = [row["evaluation/accuracy"] for row in rows if "evaluation/accuracy" in row]
    steps = [row for row in rows if "seconds/step" in row][SKIPPED:-LAST]
    seconds = mean(row["seconds/step"] for row in steps)
    return {
        "seconds of a step": seconds,
        "of waiting for responses": mean(row["seconds/rollout"] for row in steps),
        "of the update": mean(row["seconds/update"] for row in steps),
        "sequences a second": PROMPTS * SAMPLES / seconds,
        "tokens of a response": mean(row["rollout/response_length_mean"] for row in steps),
        "longest response": mean(row["rollout/response_length_max"] for row in steps),
        "mean age of a token": mean(row.get("staleness/mean", 0) for row in steps),
        "accuracy before": accuracies[0],
        "accuracy behind": accuracies[-1],
    }


def shown(found: Mapping[str, Sequence[Figures]]) -> None:
    """Print the means over the seeds, and what is gained over the first way."""
    ways = list(found)
    table = Table("mean over the seeds", *ways)
    for name in found[ways[0]][0]:
        table.add_row(name, *(f"{mean(each[name] for each in found[way]):.3g}" for way in ways))
    name = "sequences a second"
    base = [each[name] for each in found[ways[0]]]
    ratios = {
        way: [each[name] / first for each, first in zip(found[way], base, strict=True)]
        for way in ways
    }
    cells = [f"{mean(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in ratios.values()]
    table.add_row(f"{name}, over {ways[0]}", *cells)
    Console(width=140, highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main())
