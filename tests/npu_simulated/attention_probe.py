"""Functions for tests of attention and random numbers, called in a simulated device's process."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mindrl.platform.attention import Packing, attention_kernel


def attended(starts: Sequence[int], heads: list[Tensor], gradient: Tensor) -> list[list[Tensor]]:
    """Attend on the host and on the device; returns the result and the gradients of each."""
    return [_attended(kind, starts, heads, gradient) for kind in ("cpu", "npu")]


def _attended(
    kind: str, starts: Sequence[int], heads: list[Tensor], gradient: Tensor
) -> list[Tensor]:
    leaves = [tensor.to(kind).detach().requires_grad_() for tensor in heads]
    packing = Packing(
        starts=tuple(starts),
        longest=max(starts),
        cumulative=torch.tensor(starts, dtype=torch.int32, device=kind),
    )
    mixed = attention_kernel(kind)(*leaves, packing, None)
    mixed.backward(gradient.to(kind))
    return [tensor.detach().cpu() for tensor in (mixed, *(leaf.grad for leaf in leaves))]


def refusal(starts: Sequence[int], heads: list[Tensor], gradient: Tensor) -> str:
    """Return why the kernel of the device takes no such call."""
    try:
        _attended("npu", starts, heads, gradient)
    except RuntimeError as error:
        return str(error)
    return ""


def drawn_twice_from_one_state() -> list[list[float]]:
    """Draw, go back to the state before, draw; then draw from another seed."""
    torch.npu.manual_seed(7)
    state = torch.npu.get_rng_state()
    found = [torch.rand(4, device="npu").tolist()]
    torch.npu.set_rng_state(state)
    found.append(torch.rand(4, device="npu").tolist())
    torch.npu.manual_seed(8)
    found.append(torch.rand(4, device="npu").tolist())
    return found
