"""Tensor and sequence parallelism: parameters are DTensors, the forward pass sees plain tensors.

FSDP2 and readers of the weights use the placements. No operation of a model is dispatched by
DTensor, which takes three to six times as long. With sequence parallelism hidden states between the
cut regions are cut over the tokens: [1, S / tp, H].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.nn import functional

from mindrl.models.adapters import SECOND_FACTOR
from mindrl.training.archon.collectives import (
    copied,
    gathered,
    gathered_by_all,
    scattered,
    summed,
)


@dataclass(frozen=True, kw_only=True)
class TensorParallel:
    """How tensor-parallel ranks share a model's matrices; not at all if there is one rank."""

    mesh: DeviceMesh
    """One-dimensional mesh."""
    sequence: bool
    """Whether hidden states are cut over the tokens."""
    twins: dist.ProcessGroup | None = None
    """Ranks that hold the same key-value heads, if there are fewer heads than ranks."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.mesh.size()

    @property
    def rank(self) -> int:
        """This rank's index."""
        return self.mesh.get_local_rank()

    @property
    def group(self) -> dist.ProcessGroup:
        """Process group of the ranks."""
        return self.mesh.get_group()

    def parameter(self, *shape: int, cut: int | None = None) -> nn.Parameter:
        """Return this rank's part of a parameter on the meta device, cut along dimension `cut`.

        `shape` is that of the whole; a size that does not divide is padded.
        """
        sizes = list(shape)
        if cut is not None:
            sizes[cut] = -(-sizes[cut] // self.size)
        local = torch.empty(sizes, device="meta")
        if self.size == 1:
            return nn.Parameter(local)
        whole = [size * self.size if dim == cut else size for dim, size in enumerate(sizes)]
        placement = Replicate() if cut is None else Shard(cut)
        return nn.Parameter(
            DTensor.from_local(
                local,
                self.mesh,
                [placement],
                run_check=False,
                shape=torch.Size(whole),
                stride=torch.empty(whole, device="meta").stride(),
            )
        )

    def enter(self, hidden_1SH: Tensor) -> Tensor:
        """Return the hidden states of all tokens, as input of this rank's part of matrices."""
        if self.size == 1:
            return hidden_1SH
        return (gathered if self.sequence else copied)(hidden_1SH, self.group)

    def leave(self, part_1SH: Tensor) -> Tensor:
        """Return the sum of the ranks' outputs."""
        if self.size == 1:
            return part_1SH
        return (scattered if self.sequence else summed)(part_1SH, self.group)

    def share(self, hidden_1SH: Tensor) -> Tensor:
        """Return the hidden states of all tokens, for replicated computation."""
        return gathered_by_all(hidden_1SH, self.group) if self.is_cut else hidden_1SH

    @property
    def is_cut(self) -> bool:
        """Whether the ranks share the tokens of hidden states."""
        return self.sequence and self.size > 1


def local(tensor: Tensor, *, sums: bool = False) -> Tensor:
    """Return this rank's part of a parameter as a plain tensor.

    `sums`: the gradient is the sum of the ranks' gradients, as for a norm of each rank's own
    tokens.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    gradient: Sequence[Placement] | None = [Partial()] if sums else None
    return tensor.to_local(grad_placements=gradient)


class Linear(nn.Module):
    """A linear layer of which a rank holds some rows (`cut` 0) or some columns (1)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        parallel: TensorParallel,
        *,
        cut: int | None = 0,
        bias: bool = False,
        twins: dist.ProcessGroup | None = None,
    ) -> None:
        """Build the layer on the meta device; `twins` are ranks that hold the same rows."""
        super().__init__()
        self.weight = parallel.parameter(outputs, inputs, cut=cut)
        self.bias = parallel.parameter(outputs, cut=cut) if bias else None
        self.twins = twins
        self.adapter: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the product, plus the bias if there is one."""
        bias = None if self.bias is None else self._own(self.bias)
        return functional.linear(x, self._own(self.weight), bias)

    def cut_names(self) -> list[str]:
        """Return the names of the parameters of which ranks hold rows, with an adapter's."""
        rows = [name for name, _ in self.named_parameters(recurse=False)]
        return rows if self.adapter is None else [*rows, SECOND_FACTOR]

    def _own(self, parameter: Tensor) -> Tensor:
        own = local(parameter)
        return own if self.twins is None else copied(own, self.twins)


class Norm(nn.Module):
    """Root-mean-square norm."""

    def __init__(
        self,
        size: int,
        eps: float,
        parallel: TensorParallel,
        *,
        of_heads: bool,
        adds_one: bool = False,
    ) -> None:
        """Build the norm on the meta device, for this rank's heads or for hidden states.

        `adds_one`: the factor is 1 + weight, in float32.
        """
        super().__init__()
        self.weight = parallel.parameter(size)
        self.eps, self.adds_one = eps, adds_one
        self.sums = parallel.size > 1 and (of_heads or parallel.sequence)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and scale the last dimension."""
        weight = local(self.weight, sums=self.sums)
        if self.adds_one:
            factor = 1.0 + weight.float()
            return functional.rms_norm(x.float(), (len(weight),), factor, self.eps).to(x.dtype)
        return functional.rms_norm(x, (len(weight),), weight, self.eps)


class Embedding(nn.Module):
    """Embedding vectors of this rank's part of the vocabulary."""

    def __init__(self, tokens: int, size: int, parallel: TensorParallel) -> None:
        """Build the embedding on the meta device."""
        super().__init__()
        self.weight = parallel.parameter(tokens, size, cut=0)
        self.parallel = parallel

    def forward(self, tokens_1S: Tensor) -> Tensor:
        """Look up tokens; vectors of other ranks' tokens are added by a collective."""
        rows = local(self.weight)
        if self.parallel.size == 1:
            return functional.embedding(tokens_1S, rows)
        place_1S = tokens_1S - self.parallel.rank * len(rows)
        is_own_1S = (place_1S >= 0) & (place_1S < len(rows))
        found = functional.embedding(place_1S.clamp(0, len(rows) - 1), rows)
        return self.parallel.leave(found * is_own_1S[..., None])
