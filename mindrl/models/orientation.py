"""View local tensors in the dimensions of the logical ones."""

from torch import Tensor

from mindrl.models.placement import Box, index_of


def oriented(local: Tensor, box: Box, axes: tuple[int, ...] | None) -> Tensor:
    """Return a view of a box of a local tensor, with the dimensions of the logical tensor.

    `axes` is the local dimension of each logical one, None keeps their order; the box is one
    element wide in the dimensions that `axes` omits.
    """
    if axes is None:
        return local[index_of(box)]
    kept = sorted(axes)
    part = local[
        tuple(slice(*bounds) if dim in kept else bounds[0] for dim, bounds in enumerate(box))
    ]
    return part.permute([kept.index(axis) for axis in axes])
