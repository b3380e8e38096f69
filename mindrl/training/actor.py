"""The trained model: gradients, optimizer, and their memory.

Shapes: B sequences of this data-parallel rank, T positions.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from mindrl.algorithms.grpo import GrpoLoss
from mindrl.allocation.regions import TrainRegion
from mindrl.batch.experience import Minibatch
from mindrl.training.offload import (
    StorageOffloader,
    gradient_tensors,
    optimizer_tensors,
    parameter_tensors,
)
from mindrl.training.optimizer import OptimizerSettings, build_optimizer
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

    def update(self, minibatch: Minibatch, *, micro_batch_size: int) -> dict[str, float]:
        """Take one optimizer step on this rank's share of a minibatch.

        A collective over all ranks. The loss is the weighted sum of the token losses: neither
        the micro-batch size nor the number of ranks changes the gradient.

        Returns:
            Metrics of the whole minibatch, the same on every rank.
        """
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        micro_batches = list(minibatch.split(micro_batch_size))
        idle = self.model.idle_passes(len(micro_batches))
        micro_batches += [_without_weight(minibatch.rows(slice(0, 1)))] * idle
        terms = get_forward_backward_func()(
            forward_step_func=partial(self._forward_step, len(micro_batches)),
            data_iterator=iter(micro_batches),
            model=self.chunks,
            num_microbatches=len(micro_batches),
            seq_length=minibatch.tokens_BT.size(1),
            micro_batch_size=micro_batch_size,
            forward_only=False,
        )
        # Before the step: the very first update must not have a learning rate of zero.
        self.schedule.step(increment=1)
        _, grad_norm, _ = self.optimizer.step()
        return self._total(terms) | {
            "grad_norm": float(grad_norm),
            "lr": float(self.optimizer.param_groups[0]["lr"]),
        }

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

    def _forward_step(
        self, micro_batch_count: int, batches: Iterator[Minibatch], _network: torch.nn.Module
    ) -> Any:
        """Megatron's callback: run one micro-batch, return its output and its loss function."""
        minibatch = next(batches)
        # Megatron averages over micro-batches and replicas; a weighted sum wants neither.
        undo_averages = micro_batch_count * parallel_state.get_data_parallel_world_size()

        def loss(logits_BTV: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            logprobs_BT, entropy_BT = self.model.score(logits_BTV, minibatch)
            terms = self.loss(
                logprobs_BT=logprobs_BT,
                entropy_BT=entropy_BT,
                old_logprobs_BT=minibatch.old_logprobs_BT.to(logprobs_BT.device),
                advantages_BT=minibatch.advantages_BT.to(logprobs_BT.device),
                token_weights_BT=minibatch.token_weights_BT.to(logprobs_BT.device),
                ref_logprobs_BT=None
                if minibatch.ref_logprobs_BT is None
                else minibatch.ref_logprobs_BT.to(logprobs_BT.device),
            )
            return terms.loss * undo_averages, terms.metrics

        return self.model.logits(minibatch), loss

    @staticmethod
    def _total(terms: list[dict[str, Tensor]]) -> dict[str, float]:
        """Add the weighted sums over micro-batches and replicas."""
        names = sorted(terms[0])
        sums = torch.stack([torch.stack([term[name] for term in terms]).sum() for name in names])
        dist.all_reduce(sums, group=parallel_state.get_data_parallel_group())
        return dict(zip(names, sums.tolist(), strict=True))


def _without_weight(minibatch: Minibatch) -> Minibatch:
    """Return a minibatch that adds nothing to any gradient or metric."""
    return replace(minibatch, token_weights_BT=torch.zeros_like(minibatch.token_weights_BT))
