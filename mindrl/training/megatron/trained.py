"""What actor and critic share: gradients, an optimizer, and one step of it.

Shapes: B sequences of this data-parallel rank, T positions, S tokens of a pack, H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from torch import Tensor

from mindrl.algorithms.loss_terms import LossTerms
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Sequences
from mindrl.platform.determinism import deterministic_gradients
from mindrl.training.megatron.balance_loss import taken_balance_loss
from mindrl.training.megatron.forward_backward import forward_backward
from mindrl.training.megatron.loaded import LoadedModel, cut_by_rows
from mindrl.training.megatron.optimizer import OptimizerSettings, build_optimizer, take_step
from mindrl.training.megatron.packs import Pack
from mindrl.training.megatron.state_tensors import (
    gradient_tensors,
    optimizer_tensors,
    parameter_tensors,
)
from mindrl.training.state_part import StatePart

Model = TypeVar("Model", bound=LoadedModel)
Batch = TypeVar("Batch", bound=Sequences)


class TrainedModel(ABC, Generic[Model, Batch]):
    """A model with data-parallel gradients and an optimizer."""

    def __init__(self, model: Model, settings: OptimizerSettings) -> None:
        """Wrap the model; its weights move into Megatron's flat buffers."""
        self.model = model
        ddp_config = DistributedDataParallelConfig(
            use_distributed_optimizer=settings.use_distributed_optimizer,
            grad_reduce_in_fp32=True,
        )
        with model.settings.groups.active():
            self.chunks = [
                DistributedDataParallel(model.config, ddp_config, chunk) for chunk in model.chunks
            ]
            self.optimizer, self.schedule = build_optimizer(self.chunks, settings)

    @abstractmethod
    def terms(self, pack: Pack[Batch], hidden_1SH: Tensor) -> LossTerms:
        """Return what this rank's tokens of a pack add to the loss."""

    def update(self, minibatch: Batch, micro_batching: MicroBatching) -> dict[str, float]:
        """Take one optimizer step on this rank's share of a minibatch.

        A collective over all ranks. The loss is the weighted sum of the token losses: neither
        the cut into micro-batches nor the number of ranks changes the gradient.

        Returns:
            Metrics of the whole minibatch, the same on every rank of the last pipeline stage.
        """
        with self.model.settings.groups.active():
            return self._update(minibatch, micro_batching)

    def tensors(self, part: StatePart) -> Iterator[Tensor]:
        """Yield the tensors of one part of the training state."""
        match part:
            case StatePart.PARAMETERS:
                return parameter_tensors(self.chunks)
            case StatePart.GRADIENTS:
                return gradient_tensors(self.chunks)
            case StatePart.OPTIMIZER:
                return optimizer_tensors(self.optimizer, self.chunks)

    def _update(self, minibatch: Batch, micro_batching: MicroBatching) -> dict[str, float]:
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        _, parts = cut_by_rows(minibatch, micro_batching)
        packs = self.model.packs(parts)
        # Megatron averages over micro-batches and replicas; a weighted sum wants neither.
        undo_averages = len(packs) * parallel_state.get_data_parallel_world_size()

        def loss(pack: Pack[Batch], hidden_1SH: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            terms = self.terms(pack, hidden_1SH)
            return terms.loss * undo_averages, terms.metrics

        with deterministic_gradients():
            terms = forward_backward(self.chunks, packs, loss, forward_only=False)
        step = take_step(self.optimizer, self.schedule, self.model.settings.device_type)
        return _total(terms) | self._balance(len(packs)) | step

    def _balance(self, micro_batches: int) -> dict[str, float]:
        """Say how unequally busy the experts were, where the loss asks for it."""
        settings, moe = self.model.settings, self.model.description.moe
        if moe is None or not settings.moe_aux_loss_coeff:
            return {}
        layers = self.model.description.num_hidden_layers - len(moe.dense_layers)
        found = taken_balance_loss(
            micro_batches=micro_batches, layers=layers, device_type=settings.device_type
        )
        return {"moe_aux_loss": found}


def own_weights(pack: Pack[Batch], token_weights_BT: Tensor) -> Tensor:
    """Return token weights on the device, 0 where another context-parallel rank has the token."""
    device = pack.places_N.device
    own_BT = pack.spread(torch.ones(len(pack.places_N), device=device))
    return token_weights_BT.to(device) * own_BT


def _total(terms: list[dict[str, Tensor]]) -> dict[str, float]:
    """Add the weighted sums over micro-batches and replicas; there are none but at the end."""
    if not terms:
        return {}
    names = sorted(terms[0])
    sums = torch.stack([torch.stack([term[name] for term in terms]).sum() for name in names])
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    dist.all_reduce(sums, group=group)
    return dict(zip(names, sums.tolist(), strict=True))
