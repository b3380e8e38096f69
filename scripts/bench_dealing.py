"""Simulate how long replicas generate when prompts are dealt to them in different ways.

    python scripts/bench_dealing.py [--draws 10]

Answers have log-normal lengths that differ by prompt (sigma 0.8) and by sample (0.4). A replica
generates one token of each of its sequences in a step, for as many sequences as it has slots, and
begins the next one where one ends. Dealt in the order of the batch, in turn, and by the lengths of
an earlier epoch: rollout time as a share of the first, and the mean idle share of the replicas.
"""

import argparse
import random
from heapq import heapify, heapreplace
from statistics import fmean

from rich.console import Console
from rich.table import Table

from mindrl.batch.prompts import Prompt
from mindrl.layouts.layout import even_bounds
from mindrl.trainer.prompt_shares import PromptShares

SAMPLES, LONGEST = 8, 8192
CASES = ((512, 16, 128), (128, 8, 64), (64, 4, 32), (512, 16, 512))
"""Prompts, replicas, and slots of each."""


def main() -> None:
    """Print a table of the cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10, help="default: %(default)s")
    draws = parser.parse_args().draws
    table = Table(title=f"rollout time (idle share), {SAMPLES} samples a prompt")
    for column in ("prompts", "replicas", "slots", "in order", "in turn", "by earlier lengths"):
        table.add_column(column, justify="right")
    for case in CASES:
        found = [measured(*case, seed) for seed in range(draws)]
        cells = [
            f"{fmean(each[way][0] / each[0][0] for each in found):.2f} "
            f"({fmean(each[way][1] for each in found):.2f})"
            for way in range(3)
        ]
        table.add_row(*map(str, case), *cells)
    Console(highlight=False).print(table)


def measured(prompts: int, replicas: int, slots: int, seed: int) -> list[tuple[int, float]]:
    """Return the steps of the slowest replica and the mean idle share of each way."""
    draw = random.Random(seed)
    usual = [draw.lognormvariate(6, 0.8) for _ in range(prompts)]
    earlier, now = (
        [
            min(LONGEST, 1 + int(mean * draw.lognormvariate(0, 0.4)))
            for mean in usual
            for _ in range(SAMPLES)
        ]
        for _ in range(2)
    )
    asked = [Prompt(uid=row, token_ids=(row,), text="", answer="") for row in range(prompts)]
    in_order = [[*range(*bounds)] for bounds in even_bounds(prompts * SAMPLES, replicas)]
    shares = PromptShares()
    in_turn = shares.deal(asked, SAMPLES, replicas)
    shares.learn(asked, SAMPLES, earlier)
    by_lengths = shares.deal(asked, SAMPLES, replicas)
    found = []
    for dealt in (in_order, in_turn, by_lengths):
        steps = [steps_of([now[row] for row in rows], slots) for rows in dealt]
        found.append((max(steps), 1 - fmean(steps) / max(steps)))
    return found


def steps_of(lengths: list[int], slots: int) -> int:
    """Return the steps of a replica that begins its sequences in order."""
    ends = lengths[:slots]
    heapify(ends)
    for length in lengths[slots:]:
        heapreplace(ends, ends[0] + length)
    return max(ends)


if __name__ == "__main__":
    main()
