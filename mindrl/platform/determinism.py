"""The same bits from the same input: what torch has to be told inside a process.

What has to be in the environment before the process starts is in `Platform.settings`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def make_deterministic() -> None:
    """Let torch take deterministic kernels in the whole process, wherever it has them.

    Where it has none it warns and goes on: the rollout engine shares the process, and its sampler
    calls such kernels (a cumulative sum on CUDA). torch_npu does not tell a warning from an error;
    to it the process is deterministic.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Torch would fill every new tensor with NaN. The engine's cache is such a tensor: its kernels
    # multiply places that were never written by 0, and NaN would remain.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def deterministic_gradients() -> Iterator[None]:
    """Make every kernel of a training pass deterministic, or raise.

    Torch's flash attention has two kernels for the gradient and takes the deterministic one only
    where warnings are not enough (`attention_backward.cu`). Nothing changes in a process that
    never called `make_deterministic`.

    Raises:
        RuntimeError: By torch, inside: an operation has no deterministic kernel.
    """
    if not torch.are_deterministic_algorithms_enabled():
        yield
        return
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warned_only)
