"""The trained model: gradients, optimizer, and their memory.

Shapes: B sequences of this data-parallel rank, T positions.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from torch import Tensor

from mindrl.algorithms.grpo import GrpoLoss, LossTerms
from mindrl.allocation.regions import TrainRegion
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Minibatch
from mindrl.platform.determinism import deterministic_gradients
from mindrl.training.balance_loss import taken_balance_loss
from mindrl.training.offload import (
    StorageOffloader,
    gradient_tensors,
    optimizer_tensors,
    parameter_tensors,
)
from mindrl.training.optimizer import OptimizerSettings, build_optimizer
from mindrl.training.packs import Pack
from mindrl.training.passes import run_passes
from mindrl.training.scoring import ScoringModel


class TrainedModel:
    """A scoring model with data-parallel gradients and an optimizer."""

    def __init__(self, model: ScoringModel, settings: OptimizerSettings, loss: GrpoLoss) -> None:
        """Wrap the model; its weights move into Megatron's flat buffers."""
        self.model = model
        self.loss = loss
        ddp_config = DistributedDataParallelConfig(
            use_distributed_optimizer=settings.use_distributed_optimizer,
            grad_reduce_in_fp32=True,
        )
        self.chunks = [
            DistributedDataParallel(model.config, ddp_config, chunk) for chunk in model.chunks
        ]
        self.optimizer, self.schedule = build_optimizer(self.chunks, settings)
        self.offloader = StorageOffloader()
        self.released_bytes = 0

    def update(self, minibatch: Minibatch, micro_batching: MicroBatching) -> dict[str, float]:
        """Take one optimizer step on this rank's share of a minibatch.

        A collective over all ranks. The loss is the weighted sum of the token losses: neither
        the cut into micro-batches nor the number of ranks changes the gradient.

        Returns:
            Metrics of the whole minibatch, the same on every rank of the last pipeline stage.
        """
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        parts = micro_batching.cut(minibatch.lengths_B.tolist())
        packs = self.model.packs([minibatch.rows(torch.tensor(rows)) for rows in parts])
        # Megatron averages over micro-batches and replicas; a weighted sum wants neither.
        undo_averages = len(packs) * parallel_state.get_data_parallel_world_size()

        def loss(pack: Pack[Minibatch], hidden_1SH: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            terms = self._terms(pack, hidden_1SH)
            return terms.loss * undo_averages, terms.metrics

        with deterministic_gradients():
            terms = run_passes(self.chunks, packs, loss, forward_only=False)
        # Before the step: the very first update must not have a learning rate of zero.
        self.schedule.step(increment=1)
        _, grad_norm, _ = self.optimizer.step()
        return (
            self._total(terms)
            | self._balance(len(packs))
            | {
                "grad_norm": float(grad_norm),
                "lr": float(self.optimizer.param_groups[0]["lr"]),
            }
        )

    def tensors(self, part: TrainRegion) -> Iterator[Tensor]:
        """Yield the tensors of one part of the training state."""
        match part:
            case TrainRegion.PARAMETERS:
                return parameter_tensors(self.chunks)
            case TrainRegion.GRADIENTS:
                return gradient_tensors(self.chunks)
            case TrainRegion.OPTIMIZER:
                return optimizer_tensors(self.optimizer, self.chunks)

    def offload(self, part: TrainRegion) -> int:
        """Take a part off the device; gradients are dropped. Returns the bytes copied."""
        copied = self.offloader.offload(self.tensors(part), keep=part is not TrainRegion.GRADIENTS)
        if part is TrainRegion.PARAMETERS:
            copied, self.released_bytes = copied + self.released_bytes, 0
        return copied

    def release_parameters(self, tensor: Tensor) -> None:
        """Take the weights that share a tensor's storage off the device, ahead of `offload`."""
        self.released_bytes += self.offloader.offload([tensor], keep=True)

    def onload(self, part: TrainRegion) -> int:
        """Bring a part back to the device; gradients are zero. Returns the bytes copied."""
        return self.offloader.onload(self.tensors(part), kept=part is not TrainRegion.GRADIENTS)

    def _balance(self, passes: int) -> dict[str, float]:
        """Say how unequally busy the experts were, where the loss asks for it."""
        settings, moe = self.model.settings, self.model.description.moe
        if moe is None or not settings.moe_aux_loss_coeff:
            return {}
        layers = self.model.description.num_hidden_layers - len(moe.dense_layers)
        found = taken_balance_loss(passes=passes, layers=layers, device_type=settings.device_type)
        return {"moe_aux_loss": found}

    def _terms(self, pack: Pack[Minibatch], hidden_1SH: Tensor) -> LossTerms:
        """Return what this rank's tokens of a pack add to the loss."""
        minibatch, device = pack.source, hidden_1SH.device
        logprobs_BT, entropy_BT = self.model.score(hidden_1SH, pack)
        # Other context-parallel ranks predict the other tokens.
        own_BT = pack.spread(torch.ones(len(pack.places_N), device=device))
        ref_logprobs_BT = minibatch.ref_logprobs_BT
        return self.loss(
            logprobs_BT=logprobs_BT,
            entropy_BT=entropy_BT,
            old_logprobs_BT=minibatch.old_logprobs_BT.to(device),
            advantages_BT=minibatch.advantages_BT.to(device),
            token_weights_BT=minibatch.token_weights_BT.to(device) * own_BT,
            ref_logprobs_BT=None if ref_logprobs_BT is None else ref_logprobs_BT.to(device),
        )

    @staticmethod
    def _total(terms: list[dict[str, Tensor]]) -> dict[str, float]:
        """Add the weighted sums over micro-batches and replicas; there are none but at the end."""
        if not terms:
            return {}
        names = sorted(terms[0])
        sums = torch.stack([torch.stack([term[name] for term in terms]).sum() for name in names])
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        dist.all_reduce(sums, group=group)
        return dict(zip(names, sums.tolist(), strict=True))
