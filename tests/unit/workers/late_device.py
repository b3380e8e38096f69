"""A device whose streams execute work as late as possible: when something waits for it.

Whoever reads, changes or frees memory without waiting for the work that concerns it is found out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Stream:
    """Work in its order."""

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []
        self.done = 0

    def run(self, count: int) -> None:
        while self.done < count:
            self.done += 1
            self.work[self.done - 1]()

    def wait_stream(self, other: "Stream") -> None:
        count = len(other.work)
        self.work.append(lambda: other.run(count))


class LateDevice:
    """As `torch.cuda` and `torch_npu.npu`, as far as copies need them."""

    Stream = Stream

    def __init__(self) -> None:
        self.streams = [Stream()]

    def current_stream(self) -> Stream:
        return self.streams[-1]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.streams.append(stream)
        with _Late(stream):
            yield
        self.streams.pop()

    def Event(self) -> "_Event":  # noqa: N802 - torch's name
        return _Event(self)

    def compute(self, tensor: Tensor, value: float) -> None:
        """Fill a tensor, some time."""

        def fill() -> None:
            _require(tensor)
            tensor.fill_(value)

        self.current_stream().work.append(fill)


class _Event:
    def __init__(self, device: LateDevice) -> None:
        self.device = device

    def record(self) -> None:
        self.stream = self.device.current_stream()
        self.count = len(self.stream.work)

    def synchronize(self) -> None:
        self.stream.run(self.count)


class _Late(TorchFunctionMode):
    """Puts off the copies that ask for it."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is torch.Tensor.copy_ and kwargs and kwargs.get("non_blocking"):
            return self.stream.work.append(lambda: _copy(*args))
        return function(*args, **(kwargs or {}))


def _copy(target: Tensor, source: Tensor) -> None:
    _require(target, source)
    target.copy_(source)


def _require(*tensors: Tensor) -> None:
    # A report must not show the tensors either.
    __tracebackhide__ = True
    for tensor in tensors:
        assert tensor.untyped_storage().nbytes(), "memory was freed before its turn came"
