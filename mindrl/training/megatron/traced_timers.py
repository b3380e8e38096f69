"""The passes of micro-batches in the trace, by what Megatron takes for timers."""

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
    """Stands where `megatron.core.timers.Timers` would, in the configuration of a model."""

    def __init__(self) -> None:
        """Have met no name."""
        self._timers: dict[str, _Timer] = {}

    def __call__(self, name: str, log_level: int = 0) -> _Timer:  # noqa: ARG002
        """Return the timer of a name."""
        if name not in self._timers:
            self._timers[name] = _Timer(name)
        return self._timers[name]
