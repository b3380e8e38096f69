"""Compare measured device memory of the first steps with the plan."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mindrl.memory.plan import MemoryPlan
from mindrl.memory.schedule import Move, MoveKind, Region, label_of
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.observability.units import mib_text

_LARGEST_ERROR = 0.05
"""Relative error of a prediction above which the run reports it."""

_TAKEN_LATER = label_of(Move(MoveKind.ONLOAD, Region.ROLLOUT_WEIGHTS))
"""Move without a comparison: an engine may allocate its weights in it, or while they are loaded in
the reshard that follows immediately."""


class MemoryWatch:
    """Writes the memory timeline of steps, and compares it with the plan."""

    def __init__(self, plan: MemoryPlan, folder: Path) -> None:
        """Set the plan of the run and the folder for `memory.jsonl` and `memory.png`."""
        self.plan = plan
        self.folder = folder

    def note(self, step: int, workers: Sequence[Sequence[MeasuredSnapshot]]) -> str | None:
        """Write the workers' moments of a step, by rank.

        Returns:
            A note about the largest difference between measurement and prediction, if it is too
                large; otherwise None.

        Raises:
            OutputError: A file cannot be written.
        """
        # Imported late: matplotlib takes a second, and most processes never draw.
        from mindrl.observability.timeline_chart import write_timeline  # noqa: PLC0415

        compared = [self._compared(rank, moments) for rank, moments in enumerate(workers)]
        write_timeline(
            self.folder,
            {f"worker {rank}, step {step}": moments for rank, moments in enumerate(compared)},
            capacity_bytes=self.plan.capacity_bytes,
        )
        # A platform may allocate memory later than the move: compare memory during use.
        found = [
            (_error(moment), rank, moment)
            for rank, moments in enumerate(compared)
            for moment in moments
            if moment.label in (moment.phase, MoveKind.RESHARD.value)
        ]
        error, rank, moment = max(found, key=lambda each: each[0], default=(0.0, 0, None))
        if moment is None or error <= _LARGEST_ERROR:
            return None
        assert moment.predicted_bytes is not None
        return (
            f"step {step}: worker {rank} used {mib_text(moment.total_bytes)} of device memory at "
            f"'{moment.label}'; the plan predicted {mib_text(moment.predicted_bytes)}"
        )

    def _compared(self, rank: int, moments: Sequence[MeasuredSnapshot]) -> list[MeasuredSnapshot]:
        predicted = {
            (planned.phase, planned.label): planned.total_bytes
            for planned in self.plan.of_rank(rank)
            if planned.label != _TAKEN_LATER
        }
        return [
            replace(moment, predicted_bytes=predicted.get((moment.phase, moment.label)))
            for moment in moments
        ]


def _error(moment: MeasuredSnapshot) -> float:
    if moment.predicted_bytes is None:
        return 0.0
    more = moment.total_bytes - moment.predicted_bytes
    # Weights in separate storages leave one by one, before all of the engine's have arrived.
    error = max(0, more) if moment.label == MoveKind.RESHARD.value else abs(more)
    return error / max(1, moment.predicted_bytes)
