"""Record the passes of micro-batches in the trace through Megatron's timer interface."""

import time

from mindrl.observability.trace import TRACE

_WORDS = {"forward-compute": "forward", "backward-compute": "backward"}


class _Timer:
    def __init__(self, name: str) -> None:
        self.name, self.start_ns = _WORDS.get(name, name), 0

    def start(self, barrier: bool = False) -> None:  # noqa: ARG002 - Megatron's
        self.start_ns = time.perf_counter_ns()

    def stop(self, barrier: bool = False) -> None:  # noqa: ARG002 - Megatron's
        TRACE.add(self.name, self.start_ns, time.perf_counter_ns())


class TracedTimers:
    """Replaces `megatron.core.timers.Timers` in a model's configuration."""

    def __init__(self) -> None:
        """Start without timers."""
        self._timers: dict[str, _Timer] = {}

    def __call__(self, name: str, log_level: int = 0) -> _Timer:  # noqa: ARG002
        """Return the timer with this name, creating it at first use."""
        if name not in self._timers:
            self._timers[name] = _Timer(name)
        return self._timers[name]
