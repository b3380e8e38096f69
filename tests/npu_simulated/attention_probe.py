"""Functions for tests of attention and random numbers, called in a simulated device's process."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from mindrl.platform.attention import Packing, attention_kernel
from mindrl.platform.block_attention import Block, Joined, block_attention
from mindrl.platform.fused_layers import fused_rms_norm


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


def blocks(
    bounds: tuple[Sequence[int], Sequence[int]],
    is_causal: bool,
    heads: list[Tensor],
    joined: list[Tensor],
    gradient: Tensor,
) -> list[list[Tensor]]:
    """Return result, log-sum-exp and gradients of a block, on the host and on the device.

    The gradients are those for a result and a log-sum-exp of further keys too, `joined`.
    """
    return [_block(kind, bounds, is_causal, (heads, joined, gradient)) for kind in ("cpu", "npu")]


def _block(
    kind: str,
    bounds: tuple[Sequence[int], Sequence[int]],
    is_causal: bool,
    tensors: tuple[list[Tensor], list[Tensor], Tensor],
) -> list[Tensor]:
    queries, keys = (_packing(starts, kind) for starts in bounds)
    block = Block(queries=queries, keys=keys, is_causal=is_causal, scale=0.25)
    passes, (heads, joined, gradient) = block_attention(kind), tensors
    query, key, value = (each.to(kind) for each in heads)
    found = passes.forward((query, key, value), block)
    whole = Joined(*(each.to(kind) for each in joined))
    gradients = passes.backward(gradient.to(kind), (query, key, value), whole, block)
    return [each.cpu() for each in (*found, *gradients)]


def _packing(starts: Sequence[int], kind: str) -> Packing:
    longest = max(stop - start for start, stop in pairwise(starts))
    cumulative = torch.tensor(starts, dtype=torch.int32, device=kind)
    return Packing(starts=tuple(starts), longest=longest, cumulative=cumulative)


def normed(hidden: Tensor, weight: Tensor, gradient: Tensor, epsilon: float) -> list[list[Tensor]]:
    """Return a norm and its gradients, by torch on the host and by the device's kernel."""

    def of_torch(x: Tensor, w: Tensor) -> Tensor:
        return functional.rms_norm(x, w.shape, w, epsilon)

    def of_device(x: Tensor, w: Tensor) -> Tensor:
        return fused_rms_norm(x, w, epsilon)

    found = []
    for kind, norm in (("cpu", of_torch), ("npu", of_device)):
        leaves = [each.to(kind).detach().requires_grad_() for each in (hidden, weight)]
        made = norm(*leaves)
        made.backward(gradient.to(kind))
        found.append([each.detach().cpu() for each in (made, *(leaf.grad for leaf in leaves))])
    return found


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
