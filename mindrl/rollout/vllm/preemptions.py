"""Number of times that the engine preempts a sequence because its KV cache is full."""

from typing import Any


class Preemptions:
    """Counts preemptions. A preempted sequence waits, and all its tokens are recomputed."""

    def __init__(self, engine: Any, ranks: int) -> None:
        """Wrap the scheduler of a replica's engine; each of its `ranks` counts the same."""
        scheduler = engine.engine_core.engine_core.scheduler
        self._preempt, self._ranks, self._count = scheduler._preempt_request, ranks, 0
        scheduler._preempt_request = self._counted

    def flush(self) -> float:
        """Return this rank's share of the replica's count since the last call."""
        count, self._count = self._count, 0
        return count / self._ranks

    def _counted(self, *arguments: Any, **options: Any) -> Any:
        self._count += 1
        return self._preempt(*arguments, **options)
