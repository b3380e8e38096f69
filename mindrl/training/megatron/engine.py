"""The Megatron-core engine of one model: reads sequences, and trains if it has an optimizer.

Shapes: S tokens of a pack, H hidden size.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker
from torch import Tensor, nn

from mindrl.models.adapters import adapter_sharding
from mindrl.training.megatron.adapters import ModelAdapters, put_adapters
from mindrl.training.megatron.model import (
    ModelSettings,
    build_model,
    head_is_embedding,
    head_weight,
    transformer_config,
)
from mindrl.training.megatron.optimizer_slices import state_slices
from mindrl.training.megatron.passes import forward_backward
from mindrl.training.megatron.routes import follow_routes
from mindrl.training.megatron.training_state import TrainingState
from mindrl.training.megatron.weights import (
    check_table,
    local_tensors,
    made_tensors,
    mark_parameters,
)
from mindrl.training.packs import Pack
from mindrl.training.reading import Reader
from mindrl.training.routes import RouteGroups
from mindrl.training.skeleton import EngineSkeleton, HeadGroups
from mindrl.training.state_slice import StateSlice


class MegatronEngine(EngineSkeleton[ModelSettings, TrainingState]):
    """This rank's part of a model; see `TrainingEngine`."""

    adapters: ModelAdapters | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the model's ranks the default process group, and install its layout's groups."""
        with super().active(), self.settings.groups.active():
            yield

    def local_tensors(self) -> dict[str, Tensor]:
        """Return this rank's weights by their local names, in the shapes of its table."""
        return local_tensors(self.chunks, self.table)

    def _build(self) -> None:
        self.config = transformer_config(self.description, self.settings)
        self.chunks: list[nn.Module] = build_model(self.description, self.config, self.settings)
        check_table(self.chunks, self.table)

    def _prepared(self, updates: int | None) -> TrainingState | None:
        self.adapters = self._adapters()
        for chunk in self.chunks:
            mark_parameters(chunk)
        if updates is None:
            return None
        return TrainingState(self.chunks, self.config, self.settings, updates)

    def _adapters(self) -> ModelAdapters | None:
        """Put adapters on the model; None if its weights are trained."""
        low_rank = self.settings.low_rank
        if low_rank is None:
            return None
        sharding = adapter_sharding(self.sharding, low_rank)
        adapters = put_adapters(self.chunks, self.table, sharding, low_rank)
        self._fill_factors(adapters)
        return adapters

    def _state_slices(self) -> Iterator[StateSlice]:
        table = self.table if self.adapters is None else self.adapters.table
        if self.learning is None:
            return state_slices(made_tensors(self.chunks), table, None)
        return self.learning.slices(table)

    def _run_forward(self, packs: Sequence[Pack[Any]], read: Reader) -> list[Tensor]:
        def no_loss(pack: Pack[Any], hidden_1SH: Tensor) -> tuple[Tensor, Tensor]:
            read_BT = read(pack, hidden_1SH, self._head_weight())
            return torch.zeros((), device=hidden_1SH.device), read_BT

        return forward_backward(self.chunks, packs, no_loss, forward_only=True)

    def _run_update(
        self, learning: TrainingState, packs: Sequence[Pack[Any]], loss: Reader
    ) -> None:
        # Undo Megatron's averages over micro-batches and replicas: the loss is a weighted sum.
        undo_averages = len(packs) * parallel_state.get_data_parallel_world_size()

        def summed(pack: Pack[Any], hidden_1SH: Tensor) -> tuple[Tensor, None]:
            weight = self._head_weight()
            if self.head == "vocabulary" and not head_is_embedding(self.chunks[-1]):
                weight = learning.overlap.watched(weight, hidden_1SH)
            return loss(pack, hidden_1SH, weight) * undo_averages, None

        with self._dropping():
            forward_backward(learning.chunks, packs, summed, forward_only=False)

    def _dropping(self) -> AbstractContextManager[None]:
        """Enable the adapters' dropout, with another seed for each update and replica."""
        if self.adapters is None:
            return nullcontext()
        replica = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        drawn = (self.settings.training.seed, self.updates, replica)
        return self.adapters.dropping(zlib.crc32(repr(drawn).encode()))

    def _pack_count(self, count: int, *, learns: bool) -> int:  # noqa: ARG002
        # Ranks that share experts exchange tokens in every micro-batch, so all need the same
        # number, and an interleaved pipeline needs a multiple of its stages.
        layout = self.settings.layout
        if self.description.moe is not None and layout.ep * layout.etp > 1:
            most = torch.tensor(count, device=self.device_type)
            group = parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
            dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
            count = int(most)
        return count + -count % layout.pp if layout.vpp > 1 else count

    def _follow_routes(self) -> list[int]:
        return follow_routes(self.chunks)

    def _route_groups(self) -> RouteGroups:
        layout = self.settings.layout
        shares = layout.cp * self._token_ranks > 1
        return RouteGroups(
            tokens=parallel_state.get_tensor_and_context_parallel_group() if shares else None,
            replicas=parallel_state.get_data_parallel_group(),
            cut=(self._token_ranks, parallel_state.get_tensor_model_parallel_rank()),
        )

    def _head_groups(self) -> HeadGroups:
        is_cut = self.settings.layout.cp > 1
        return HeadGroups(
            tensor=parallel_state.get_tensor_model_parallel_group(),
            context=parallel_state.get_context_parallel_group() if is_cut else None,
            replicas=parallel_state.get_data_parallel_group(with_context_parallel=True),
        )

    @property
    def _token_ranks(self) -> int:
        return self.settings.layout.tp if self.config.sequence_parallel else 1

    def _head_weight(self) -> Tensor:
        return head_weight(self.chunks[-1])

    def _balance(self, packs: int) -> dict[str, float]:
        moe = self.description.moe
        if moe is None or not self.settings.learning.moe_aux_loss_coeff:
            return {}
        tracker = get_moe_layer_wise_logging_tracker()
        total = torch.zeros((), device=self.device_type)
        # A stage without experts has no entry.
        if "load_balancing_loss" in tracker:
            total += tracker["load_balancing_loss"]["values"].sum() / packs
        # Each rank has the part of its own tokens and of its stage's layers.
        dist.all_reduce(total)
        # Cleared, not zeroed: the next model may have another number of layers.
        tracker.clear()
        layers = self.description.num_hidden_layers - len(moe.dense_layers)
        replicas: int = parallel_state.get_data_parallel_world_size()
        return {"moe_aux_loss": float(total) / (replicas * layers)}
