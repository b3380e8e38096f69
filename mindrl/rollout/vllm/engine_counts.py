"""Counts of what an engine has done: its steps, and preemptions for lack of KV cache."""

from typing import Any


class EngineCounts:
    """Counts steps and preemptions. A preempted sequence waits; its tokens are computed again."""

    def __init__(self, engine: Any, ranks: int) -> None:
        """Wrap the scheduler of a replica's engine; each of its `ranks` counts the same."""
        scheduler = engine.engine_core.engine_core.scheduler
        self._preempt, self._ranks = scheduler._preempt_request, ranks
        self._preemptions = self._steps = 0
        scheduler._preempt_request = self._counted

    def count_step(self) -> None:
        """Count a step of the engine."""
        self._steps += 1

    def flush(self) -> dict[str, float]:
        """Return this rank's share of the replica's counts since the last call, by metric."""
        counts = {
            "throughput/preemptions": self._preemptions / self._ranks,
            "throughput/engine_steps": self._steps / self._ranks,
        }
        self._preemptions = self._steps = 0
        return counts

    def _counted(self, *arguments: Any, **options: Any) -> Any:
        self._preemptions += 1
        return self._preempt(*arguments, **options)
