"""Megatron's process groups for several layouts in one process.

Megatron keeps the groups of one layout in globals of its module `parallel_state`. Here every layout
has its own copy, which is installed while a model of that layout runs.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from mindrl.layouts.layout import TrainLayout
from mindrl.platform.patches.megatron_rank_order import rank_groups
from mindrl.training.context import context_groups
from mindrl.training.megatron.legality import tensor_ranks_lie_closest

_NAMES = tuple(
    name
    for name in vars(parallel_state)
    # All layouts share the scratch memory, which is free between two operations.
    if re.fullmatch("_[A-Z0-9_]+", name) and not name.endswith("_MEMORY_BUFFER")
)
"""Globals in which Megatron keeps a layout's groups and values derived from them."""
_NO_GROUPS: tuple[dict[str, Any], dict[str, Any]] = (
    {name: getattr(parallel_state, name) for name in _NAMES},
    {},
)


class ParallelGroups:
    """Megatron's process groups of one layout."""

    def __init__(self, layout: TrainLayout, *, seed: int, timeout_minutes: int) -> None:
        """Create the groups. A collective over the default process group, which must exist.

        `seed` sets Megatron's random states; a collective of these groups that exceeds the timeout
        raises.
        """
        self._state = _NO_GROUPS
        with self.active():
            # Megatron asserts that no scratch memory exists yet.
            parallel_state.destroy_global_memory_buffer()
            initialise_model_parallel(layout, seed=seed, timeout_minutes=timeout_minutes)
            whole = parallel_state.get_context_parallel_group()
            self.context = context_groups(layout, whole)
            """Ranks that share the tokens of sequences; None for a single rank."""
            self._state = _present()

    def activate(self) -> None:
        """Install these groups in Megatron until others are installed."""
        _put(self._state)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Install these groups inside the context; restore the previous ones afterwards."""
        before = _present()
        self.activate()
        try:
            yield
        finally:
            _put(before)


def parallel_sizes(layout: TrainLayout) -> dict[str, int | None]:
    """Return a layout's sizes under Megatron's names."""
    return {
        "tensor_model_parallel_size": layout.tp,
        "context_parallel_size": layout.cp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
    }


def initialise_model_parallel(layout: TrainLayout, *, seed: int, timeout_minutes: int) -> None:
    """Create Megatron's groups; the default process group must exist already."""
    assert tensor_ranks_lie_closest(layout.experts_order), f"etp must come before ep: {layout}"

    def expert_groups(dimensions: Collection[str]) -> list[list[int]]:
        # Megatron calls the tensor parallelism of experts `tp` too.
        ours = {"etp" if name == "tp" else name for name in dimensions}
        return layout.experts_order.groups(ours)

    own_order = layout.order is None and layout.expert_order is None
    with nullcontext() if own_order else rank_groups(layout.dense_order.groups, expert_groups):
        parallel_state.initialize_model_parallel(
            **parallel_sizes(layout),
            distributed_timeout_minutes=timeout_minutes,
            # Only Megatron's own checkpoints use them; each needs a socket per pair of ranks.
            create_gloo_process_groups=False,
        )
    _check_coordinates(layout)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def _present() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return Megatron's current groups and random states."""
    states = tensor_parallel.get_cuda_rng_tracker().get_states()
    return {name: getattr(parallel_state, name) for name in _NAMES}, states


def _put(state: tuple[Mapping[str, Any], Mapping[str, Any]]) -> None:
    groups, random_states = state
    for name, value in groups.items():
        setattr(parallel_state, name, value)
    tensor_parallel.get_cuda_rng_tracker().set_states(random_states)


def _check_coordinates(layout: TrainLayout) -> None:
    """Assert that Megatron numbers the ranks as the layout does."""
    rank = dist.get_rank()
    dense = layout.dense_order.coordinates[rank]
    experts = layout.experts_order.coordinates[rank]
    ours = [dense.get(name, 0) for name in ("tp", "cp", "dp", "pp")]
    ours += [experts.get(name, 0) for name in ("etp", "ep", "dp")]
    megatrons = [
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_context_parallel_rank(),
        parallel_state.get_data_parallel_rank(),
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_expert_tensor_parallel_rank(),
        parallel_state.get_expert_model_parallel_rank(),
        parallel_state.get_expert_data_parallel_rank(),
    ]
    assert megatrons == ours, f"rank {rank}: {megatrons} in Megatron, {ours} in the layout"
