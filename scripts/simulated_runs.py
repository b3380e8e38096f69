"""Set runs beside the simulation of the same runs: does `plan placement` say what is measured?

    python scripts/simulated_runs.py IN_TURNS [OTHER ...]

Folders of runs apart, one replica, with `megatron_training.keep_rollouts` of all steps; the first
is one in turns. Its engine's seconds are fitted: of a step, and more for each sequence in it.

Each run is simulated with its own lengths in their order, twice. Once with the seconds of the first
run, which are those of sides that do not disturb each other. And once with its own: an update takes
what it took by the token, new weights what they took, and engine steps so much longer that the
engine works for as many seconds as it did. What that leaves is the order of steps: how long one
takes, and how long each side waits.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import numpy as np
from bench_step_orders import LAST
from rich.console import Console
from rich.table import Table
from tiny_runs import recorded

from mindrl.programs.compose import composed_config
from mindrl.propose import step_orders
from mindrl.propose.decoding import Rates
from mindrl.propose.lengths import stored_groups
from mindrl.propose.step_orders import WARM, Arrangement, Load, Worth, worth_of

Rows = Sequence[Mapping[str, Any]]
_ROUNDS = 5
"""In which the seconds of the engine settle."""


class _InOrder(Random):
    """Takes one group after the other, as the run did, and begins anew behind the last."""

    taken = 0

    def choice(self, seq: Any) -> Any:
        self.taken += 1
        return seq[(self.taken - 1) % len(seq)]


def main() -> int:
    """Print three lines for each run; returns the exit code."""
    first, *others = map(Path, sys.argv[1:])
    titles = ("run", "", "s a step", "trainer idle", "rollout idle", "an engine step", "an update")
    table, alone = Table(*titles), fitted(first)
    print(f"engine: {alone.engine_step:.2e} s a step, {alone.sequence_more:.2e} s a sequence more")
    step_orders.Random = _InOrder  # type: ignore[misc,attr-defined]
    for folder in (first, *others):
        rows = counted(folder)
        seconds, busy = (mean(row[f"seconds/{of}"] for row in rows) for of in ("step", "generate"))
        waits = 1 - mean(trains(row) for row in rows) / seconds
        table.add_row(folder.name, "measured", *_cells(seconds, waits, 1 - busy / seconds))
        own = settled(folder, with_update(alone, rows), busy)
        slower = own.engine_step / alone.engine_step, own.trained_token / alone.trained_token
        for name, rates, ratios in (("its own seconds", own, slower), ("the first's", alone, ())):
            worth = simulated(folder, rates)
            cells = (worth.step_seconds, worth.idle_training, worth.idle_rollout, *ratios)
            table.add_row("", f"simulated, {name}", *_cells(*cells))
    Console(width=110, highlight=False).print(table)
    return 0


def simulated(folder: Path, rates: Rates) -> Worth:
    """Simulate a run."""
    config = composed_config("config", [], str(folder / ".hydra"))
    groups, prompt_tokens = stored_groups(folder / "rollouts")
    per_step, order = config.megatron_training.global_batch_size, config.rl_config.step_order
    load = Load(groups=groups, prompts=per_step, prompt_tokens=round(prompt_tokens))
    age = {"in_turns": 0, "one_step_off": 1}.get(order, config.rl_config.max_staleness)
    way = Arrangement(order=order, max_staleness=age, training=1, rollout=1, is_apart=True)
    return worth_of(load, rates, way, steps=len(recorded(folder)) - LAST)


def settled(folder: Path, rates: Rates, busy: float) -> Rates:
    """Make the engine's steps longer or shorter until it works for so many seconds a step."""
    for _ in range(_ROUNDS):
        worth = simulated(folder, rates)
        gained = busy / (worth.step_seconds * (1 - worth.idle_rollout))
        more = rates.sequence_more * gained
        rates = replace(rates, engine_step=rates.engine_step * gained, sequence_more=more)
    return rates


def trains(row: Mapping[str, Any]) -> float:
    """Return the seconds in which the trainer, or the driver for it, worked."""
    waits = row.get("idle/training", row["seconds/rollout"] / row["seconds/step"])
    return float(row["seconds/step"] * (1 - waits))


def counted(folder: Path) -> Rows:
    """Return the steps that count in the simulation too, which has no last ones."""
    rows = recorded(folder)[:-LAST]
    return rows[len(rows) // WARM :]


def fitted(folder: Path) -> Rates:
    """Fit the seconds of an engine's step to a run in turns, whose batches begin together."""
    rows = counted(folder)
    work = [(row["rollout/response_length_max"], row["rollout/response_tokens"]) for row in rows]
    took = [row["seconds/generate"] for row in rows]
    (step, more), *_ = np.linalg.lstsq(np.array(work), np.array(took), rcond=None)
    return with_update(Rates(engine_step=float(step), sequence_more=float(more)), rows)


def with_update(rates: Rates, rows: Rows) -> Rates:
    """Take what an update took by the token, and what new weights took."""
    tokens = sum(row["rollout/response_tokens"] for row in rows)
    publish = mean(row.get("seconds/rollout_pause", row["seconds/send_weights"]) for row in rows)
    return replace(rates, trained_token=sum(map(trains, rows)) / tokens, publish=publish)


def _cells(*numbers: float) -> tuple[str, ...]:
    return tuple(f"{each:.3f}" for each in numbers)


if __name__ == "__main__":
    sys.exit(main())
