"""Whole tensors from what the ranks hold, by their tables alone."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import Head, logical_shapes
from mindrl.models.description import read_description
from mindrl.models.placement import Placement
from mindrl.models.sharding import Sharding
from mindrl.training.megatron.sharding import ExpertStorage, megatron_sharding


def assembled(
    folder: str,
    layout: TrainLayout,
    ranks: Sequence[Mapping[str, Tensor]],
    experts: ExpertStorage = "sequential",
    head: Head = "vocabulary",
) -> dict[str, Tensor]:
    """Put the local tensors of all ranks together; copies must agree to the bit."""
    model = read_description(folder)
    sharding = megatron_sharding(model, layout, dtype="float32", experts=experts, head=head)
    return put_together(sharding, logical_shapes(model, head=head), ranks)


def put_together(
    sharding: Sharding, shapes: Mapping[str, tuple[int, ...]], ranks: Sequence[Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """Fill whole tensors box by box and assert that no element was left out."""
    dtype = next(iter(ranks[0].values())).dtype
    whole = {name: torch.full(shape, torch.nan, dtype=dtype) for name, shape in shapes.items()}
    for rank, local in enumerate(ranks):
        table = sharding.table(rank)
        assert local.keys() == table.keys()
        for name, entry in table.items():
            for placement in entry.placements:
                part = _part(local[name], placement)
                box = tuple(slice(start, stop) for start, stop in placement.source)
                here = whole[placement.tensor][box]
                assert (here.isnan() | (here == part)).all(), f"{placement.tensor} of {rank}"
                here.copy_(part)
    for name, tensor in whole.items():
        assert not tensor.isnan().any(), f"{name} is held by no rank in places"
    return whole


def assert_moved_alike(
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    *,
    least: float = 0.0,
) -> None:
    """Compare each tensor behind updates by how far they moved it, `least` at the least.

    Of steps of 1e-3 on weights of 0.5, ten roundings of 3e-8 are 3e-4 and thirty 1e-3. A tensor
    that moves less may differ by one rounding of its largest weight.
    """
    for name, tensor in found.items():
        moved = (expected[name] - before[name]).abs().max().item()
        assert moved >= least, name
        rounding = torch.finfo(tensor.dtype).eps * expected[name].abs().max().item()
        within = max(moved / 1000, rounding)
        torch.testing.assert_close(tensor, expected[name], atol=within, rtol=0)


def _part(local: Tensor, placement: Placement) -> Tensor:
    for dim, (start, stop) in enumerate(placement.local):
        local = local.narrow(dim, start, stop - start)
    if placement.axes is None:
        return local
    others = [dim for dim in range(local.dim()) if dim not in placement.axes]
    return local.permute(*placement.axes, *others).flatten(start_dim=len(placement.axes) - 1)
