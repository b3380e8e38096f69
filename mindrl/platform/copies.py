"""Copies between device and host, concurrent with computation if the device has streams."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_IN_FLIGHT = 2
"""Maximum number of copies in flight: one runs while the next is prepared."""


class Copies:
    """A queue of copies on a separate stream."""

    def __init__(self, device_type: str) -> None:
        """Create the stream; the host has none and copies synchronously."""
        self.device: Any = None
        self.stream: Any = None
        if device_type != "cpu":
            self.device = torch.get_device_module(device_type)
            self.stream = self.device.Stream()
        self.pending: deque[tuple[Any, Callable[[], object]]] = deque()

    def start(self, pairs: Iterable[tuple[Tensor, Tensor]], then: Callable[[], object]) -> None:
        """Copy each source to its target, then call `then`, at the latest in `finish`.

        `pairs` are (target, source). The copy waits for work already queued on the device; the
        caller does not.
        """
        if self.stream is None:
            for target, source in pairs:
                target.copy_(source)
            then()
            return
        self.stream.wait_stream(self.device.current_stream())
        with self.device.stream(self.stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            done = self.device.Event()
            done.record()
        self.pending.append((done, then))
        while len(self.pending) > _IN_FLIGHT:
            self._wait()

    def finish(self) -> None:
        """Wait for all copies."""
        while self.pending:
            self._wait()

    def _wait(self) -> None:
        done, then = self.pending.popleft()
        done.synchronize()
        then()
