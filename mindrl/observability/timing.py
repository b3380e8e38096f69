"""Wall-clock seconds of the stages of a step."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mindrl.observability.metrics import Metrics
from mindrl.observability.trace import TRACE


class StageTimer:
    """Accumulates the seconds spent under each name: `with timer("rollout"): ...`.

    Stages may nest; an outer stage includes its inner ones. Uses of one name add up, but must not
    nest. A stage counts when it ends, also by an exception. The stages are also recorded in the
    trace of the process.
    """

    def __init__(self, enters: Callable[[str], None] = lambda _: None) -> None:
        """Start at 0; `enters` is called with each new innermost stage, or empty."""
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._enters = enters

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the body of a `with` statement."""
        assert name not in self._open, f"stage {name!r} is already being timed"
        self._open.append(name)
        self._enters(name)
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            TRACE.add(name, start, end)
            self._seconds[name] = self._seconds.get(name, 0.0) + (end - start) / 1e9
            self._open.remove(name)
            self._enters(self._open[-1] if self._open else "")

    def flush(self) -> Metrics:
        """Return `{"seconds/<name>": seconds}` of the stages that ended since the last flush."""
        metrics = {f"seconds/{name}": seconds for name, seconds in self._seconds.items()}
        self._seconds.clear()
        return metrics
