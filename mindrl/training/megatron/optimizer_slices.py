"""The state of Megatron's optimizers, cut into boxes of logical tensors.

Without the distributed optimizer every replica keeps all of a parameter. With it a replica keeps
the run of elements that falls into its part of a flat buffer. Groups must be active.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from megatron.core import parallel_state
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor, nn

from mindrl.models.flat_range import boxes_of_run
from mindrl.models.placement import LocalTensor, ShardingTable, intersect, relative, volume
from mindrl.training.state_slice import StateKind, StateSlice

_KINDS: tuple[StateKind, ...] = ("weight", "exp_avg", "exp_avg_sq")


class _Kept(NamedTuple):
    """This rank's optimizer state of one parameter."""

    tensors: Mapping[StateKind, Tensor]
    start: int
    """Offset in the parameter of the first element kept."""
    is_cut: bool
    """Whether each replica keeps only a part."""


def state_slices(
    made: Mapping[str, Tensor], table: ShardingTable, optimizers: Sequence[MegatronOptimizer] | None
) -> Iterator[StateSlice]:
    """Yield the optimizers' state on this rank, and weights that no optimizer has.

    Args:
        made: This rank's parameters and buffers by their local names.
        table: This rank's table.
        optimizers: Those of dense parameters and of experts; None for a model that is not trained.
    """
    kept = {id(parameter): found for parameter, found in _kept(optimizers or ())}
    for index, (name, entry) in enumerate(table.items()):
        tensor = made[name]
        found = kept.get(id(tensor))
        if found is None:
            if optimizers is not None and isinstance(tensor, nn.Parameter):
                continue  # Another replica keeps it.
            # Not optimised, such as a router's correction bias: the same on all replicas.
            found = _Kept(tensors={"weight": tensor}, start=0, is_cut=False)
        is_ours = _is_first_copy(tensor) and (found.is_cut or _is_next_replica(tensor, index))
        yield from _slices(entry, found, is_ours=is_ours)


def _slices(entry: LocalTensor, kept: _Kept, *, is_ours: bool) -> Iterator[StateSlice]:
    stop = kept.start + kept.tensors["weight"].numel()
    for block, offset in boxes_of_run(entry.shape, kept.start, stop):
        shape = tuple(stop - start for start, stop in block)
        for placement in entry.placements:
            common = intersect(block, placement.local)
            if common is None:
                continue
            for kind, stored in kept.tensors.items():
                yield StateSlice(
                    tensor=placement.tensor,
                    kind=kind,
                    box=placement.source_part(common),
                    stored=stored,
                    run=(offset, offset + volume(block)),
                    shape=shape,
                    local=relative(common, block),
                    axes=placement.axes,
                    is_ours=is_ours,
                )


def _kept(optimizers: Sequence[MegatronOptimizer]) -> Iterator[tuple[nn.Parameter, _Kept]]:
    for part in optimizers:
        for parameter, main, start in _mains(part):
            state = part.optimizer.state[main]
            moments = {kind: state[kind] for kind in _KINDS[1:]}
            is_cut = isinstance(part, DistributedOptimizer)
            yield parameter, _Kept(tensors={"weight": main, **moments}, start=start, is_cut=is_cut)


def _mains(part: MegatronOptimizer) -> Iterator[tuple[nn.Parameter, Tensor, int]]:
    """Yield each parameter, the tensor that the optimizer updates for it, and its offset.

    The attribute names are those of Megatron-core 0.16.
    """
    match part:
        case DistributedOptimizer():
            groups: Sequence[tuple[Sequence[nn.Parameter], Sequence[Tensor]]] = [
                *zip(part.model_fp32_groups, part.shard_fp32_groups, strict=True),
                *zip(part.model_float16_groups, part.shard_fp32_from_float16_groups, strict=True),
            ]
            for parameters, mains in groups:
                for parameter, main in zip(parameters, mains, strict=True):
                    run = part._get_model_param_range_map(parameter)["param"]
                    yield parameter, main, run.start
        case Float16OptimizerWithFloat16Params():
            groups = [
                *zip(part.fp32_from_fp32_groups, part.fp32_from_fp32_groups, strict=True),
                *zip(part.float16_groups, part.fp32_from_float16_groups, strict=True),
            ]
            for parameters, mains in groups:
                for parameter, main in zip(parameters, mains, strict=True):
                    yield parameter, main, 0
        case _:
            for parameter in part.get_parameters():
                yield parameter, parameter, 0


def _is_first_copy(tensor: Tensor) -> bool:
    """Return whether no other stage or tensor-parallel rank writes the same tensor."""
    return bool(param_is_not_shared(tensor) and param_is_not_tensor_parallel_duplicate(tensor))


def _is_next_replica(tensor: Tensor, index: int) -> bool:
    """Return whether this replica writes a tensor that all replicas keep; they take turns."""
    if getattr(tensor, "allreduce", True):
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    else:
        group = parallel_state.get_expert_data_parallel_group()
    return bool(index % group.size() == group.rank())
