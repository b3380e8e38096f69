"""Compare runs with their simulation, to validate `plan placement`.

    python scripts/simulated_runs.py IN_TURNS [OTHER ...]

The arguments are folders of runs with one replica, on separate or shared devices, that keep the
rollouts of all steps (`megatron_training.keep_rollouts`); the first run has separate devices in
turns.

Each run is simulated twice with its own lengths in their order. The first simulation uses times of
the run itself: of an engine step, and per sequence in it, including calls; of training a step, and
per token; of new weights. They are fitted to the generated and trained tokens and the time for
them, not to the time of a step or to waiting. The second uses the times of the first run, in which
both sides do not slow each other down.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from bench_step_orders import LAST
from rich.console import Console
from rich.table import Table
from tiny_runs import recorded

from mindrl.programs.compose import composed_config
from mindrl.propose import step_orders
from mindrl.propose.decoding import Rates
from mindrl.propose.lengths import stored_groups
from mindrl.propose.step_orders import WARM, Arrangement, Load, Worth, worth_of
from mindrl.trainer.rollout_files import RolloutFiles

Rows = Sequence[Mapping[str, Any]]


class _InOrder(Random):
    """Takes the groups in the order of the run, and starts again after the last."""

    taken = 0

    def choice(self, seq: Any) -> Any:
        self.taken += 1
        return seq[(self.taken - 1) % len(seq)]


def main() -> int:
    """Print three lines per run; return the exit code."""
    folders = [*map(Path, sys.argv[1:])]
    titles = ("run", "", "s per step", "trainer idle", "rollout idle", "s per engine step")
    table, alone = Table(*titles), fitted(folders[0])
    print(f"engine: {alone.engine_step:.2e} s per step + {alone.sequence_more:.2e} s per sequence")
    print(f"training: {alone.update:.2e} s per step + {alone.trained_token:.2e} s per token")
    step_orders.Random = _InOrder  # type: ignore[misc,attr-defined]
    for folder in folders:
        rows, own = counted(folder), its_own(folder, alone)
        seconds = mean(row["seconds/step"] for row in rows)
        waits, idle = (1 - mean(map(of, rows)) / seconds for of in (trains, draws))
        if not way_of(folder).is_apart:
            waits = idle = waits + idle - 1
        table.add_row(folder.name, "measured", *_cells(seconds, waits, idle, own.engine_step))
        for name, rates in (("its own times", own), ("times of the first", alone)):
            worth = simulated(folder, rates)
            cells = _cells(worth.step_seconds, worth.idle_training, worth.idle_rollout)
            table.add_row("", f"simulated, {name}", *cells)
    Console(width=110, highlight=False).print(table)
    return 0


def way_of(folder: Path) -> Arrangement:
    """Return the order of steps of a run."""
    rl = composed_config("config", [], str(folder / ".hydra")).rl_config
    order = "partial" if rl.partial_rollout else rl.step_order
    return Arrangement(
        order=order,
        max_staleness={"in_turns": 0, "one_step_off": 1}.get(order, rl.max_staleness),
        training=1,
        rollout=1,
        is_apart=not rl.use_integrated_worker,
        round_steps=rl.rollout_round_steps,
    )


def simulated(folder: Path, rates: Rates) -> Worth:
    """Simulate a run."""
    config = composed_config("config", [], str(folder / ".hydra"))
    groups, prompt_tokens = stored_groups(folder / "rollouts")
    per_step = config.megatron_training.global_batch_size
    load = Load(groups=groups, prompts=per_step, prompt_tokens=round(prompt_tokens))
    return worth_of(load, rates, way_of(folder), steps=len(recorded(folder)) - LAST)


def trains(row: Mapping[str, Any]) -> float:
    """Return the seconds in which the trainer, or the driver on its behalf, worked."""
    waits = row.get("idle/training", row["seconds/rollout"] / row["seconds/step"])
    return float(row["seconds/step"] * (1 - waits))


def draws(row: Mapping[str, Any]) -> float:
    """Return the seconds in which the replica worked, including calls."""
    if "idle/rollout" in row:
        return float(row["seconds/step"] * (1 - row["idle/rollout"]))
    return float(row["seconds/generate"])


def counted(folder: Path) -> Rows:
    """Return the steps without the last ones, which the simulation does not have."""
    rows = recorded(folder)[:-LAST]
    return rows[len(rows) // WARM :]


def drawn(folder: Path) -> dict[int, tuple[int, int]]:
    """Return the engine steps, and the generated tokens, with the weights of each step.

    Each response starts when the engine has the weights: a response that is incomplete when the
    next weights arrive has a token of each engine step.
    """
    found: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    files = RolloutFiles(folder / "rollouts")
    for step in files.steps():
        table = pq.ParquetFile(files.path(step)).read()
        of_none = [[0] * len(tokens) for tokens in table["response_token_ids"].to_pylist()]
        ages = table["ages"].to_pylist() if "ages" in table.column_names else of_none
        for age, count in (each for row in ages for each in Counter(row).items()):
            most, tokens = found[step - age]
            found[step - age] = max(most, count), tokens + count
    return found


def fitted(folder: Path) -> Rates:
    """Fit the seconds of an engine step to a run in turns, in which all sequences start together.

    Their number then falls from all to one; in other orders it hardly changes.
    """
    rows, drawn_of = counted(folder), drawn(folder)
    step, more = _shared_out([drawn_of[row["step"]] for row in rows], [*map(draws, rows)])
    return _with_training(Rates(engine_step=step, sequence_more=more), rows)


def its_own(folder: Path, alone: Rates) -> Rates:
    """Fit the seconds of another run by scaling the engine steps of the first."""
    rows, drawn_of = counted(folder), drawn(folder)
    work = [drawn_of[row["step"]] for row in rows]
    took = sum(steps * alone.engine_step + tokens * alone.sequence_more for steps, tokens in work)
    longer = sum(map(draws, rows)) / took
    step, more = alone.engine_step * longer, alone.sequence_more * longer
    return _with_training(Rates(engine_step=step, sequence_more=more), rows)


def _with_training(rates: Rates, rows: Rows) -> Rates:
    work = [(1.0, row["rollout/response_tokens"]) for row in rows]
    update, token = _shared_out(work, [*map(trains, rows)])
    moved = mean(map(_moves, rows))
    return replace(rates, trained_token=token, update=update, publish=moved, switch=moved)


def _moves(row: Mapping[str, Any]) -> float:
    """Return the seconds of new weights, or of the switches to the rollout and back.

    Without the rest of a round after an update, which is simulated.
    """
    if "seconds/send_weights" in row:
        return float(row.get("seconds/publish", row["seconds/send_weights"]))
    return float(row["seconds/rollout"] - row["seconds/generate"])


def _shared_out(work: Sequence[tuple[float, float]], took: Sequence[float]) -> tuple[float, float]:
    """Fit the times of two kinds of work; both are at least 0."""
    both = np.linalg.lstsq(np.array(work), np.array(took), rcond=None)[0]
    if both.min() >= 0:
        return float(both[0]), float(both[1])
    alone = [sum(took) / sum(kind) for kind in zip(*work, strict=True)]
    return (alone[0], 0.0) if both[0] > 0 else (0.0, alone[1])


def _cells(*numbers: float) -> tuple[str, ...]:
    return tuple(f"{each:.3f}" for each in numbers)


if __name__ == "__main__":
    sys.exit(main())
