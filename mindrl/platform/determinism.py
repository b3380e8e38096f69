"""Bitwise reproducibility: settings of torch inside a process.

Variables that must be set before the process starts are in `Platform.settings`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def make_deterministic() -> None:
    """Make torch use deterministic kernels in the whole process if it has them.

    Without one, torch only warns: the rollout engine shares the process, and its sampler calls such
    kernels (a cumulative sum on CUDA). torch_npu does not distinguish a warning from an error;
    there the process is deterministic.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Torch would fill every new tensor with NaN. The engine's cache is such a tensor: its kernels
    # multiply unwritten elements by 0, which keeps NaN.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def deterministic_gradients() -> Iterator[None]:
    """Require deterministic kernels in a training pass.

    Torch's flash attention has two kernels for the gradient and uses the deterministic one only if
    warnings are not enough (`attention_backward.cu`). Has no effect in a process that never called
    `make_deterministic`.

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
