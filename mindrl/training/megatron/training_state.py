"""Training state of a model besides its weights: gradients, optimizer and schedule.

Large tensors are in few storages: one flat buffer of parameters and one of gradients per bucket
group, and the optimizer's own tensors.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from mindrl.config.role import LearningConfig
from mindrl.models.placement import ShardingTable
from mindrl.training.engine import StatePart
from mindrl.training.megatron.model import ModelSettings
from mindrl.training.megatron.optimizer_slices import state_slices
from mindrl.training.megatron.overlap import Overlap
from mindrl.training.megatron.weights import made_tensors
from mindrl.training.state_slice import StateSlice


class TrainingState:
    """Data-parallel gradients of a model, and the optimizer of its weights."""

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        config: TransformerConfig,
        settings: ModelSettings,
        updates: int,
    ) -> None:
        """Wrap the chunks for a run of `updates` optimizer steps. Groups must be active.

        Moves the weights into Megatron's flat buffers.
        """
        learning, training = settings.learning, settings.training
        ddp_config = DistributedDataParallelConfig(
            use_distributed_optimizer=training.use_distributed_optimizer,
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=training.overlap_grad_reduce,
            overlap_param_gather=training.overlap_param_gather,
            bucket_size=training.bucket_size(settings.layout.dp),
        )
        self.device_type = settings.device_type
        self.chunks = [DistributedDataParallel(config, ddp_config, chunk) for chunk in chunks]
        self.overlap = Overlap(config, self.chunks)
        self.optimizer: MegatronOptimizer = get_megatron_optimizer(
            OptimizerConfig(
                **learning.optimizer_options(),
                optimizer="adam",
                bf16=training.bf16,
                params_dtype=config.params_dtype,
                use_distributed_optimizer=training.use_distributed_optimizer,
                overlap_param_gather=training.overlap_param_gather,
            ),
            self.chunks,
            use_gloo_process_groups=False,
        )
        self._allocate_moments()
        self.schedule = _schedule(self.optimizer, learning, updates)

    def zero_gradients(self) -> None:
        """Zero the gradients at the start of a step."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        self.overlap.begin()

    def step(self, losses: Sequence[Tensor]) -> dict[str, float]:
        """Take the optimizer step, or skip it if a loss or the gradient norm is not finite.

        A collective over all ranks: if one rank must skip the step, all do. A skipped step changes
        no weight, no moment and no learning rate.

        Args:
            losses: This rank's losses with their metrics; empty before the last stage.

        Returns:
            `grad_norm` before clipping, `lr` of this update, and `skipped`: 1 for a skipped step,
            which also has `nonfinite/loss` and `nonfinite/gradient` on the ranks where they
            occurred.
        """
        # Megatron's step clips and updates at once, whatever the norm is: check first.
        self.optimizer.prepare_grads()
        grad_norm = float(self.optimizer.get_grad_norm())
        has_loss = all(bool(each.isfinite().all()) for each in losses)
        finite = torch.tensor(int(has_loss and math.isfinite(grad_norm)), device=self.device_type)
        dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        lr = float(self.optimizer.param_groups[0]["lr"])
        if finite:
            self.optimizer.step()
            self.schedule.step(increment=1)
        metrics = {"grad_norm": grad_norm, "lr": lr, "skipped": float(not finite)}
        if not has_loss:
            metrics["nonfinite/loss"] = 1.0
        if not finite and not self.overlap.is_finite():
            metrics["nonfinite/gradient"] = 1.0
        return metrics

    def complete_weights(self) -> None:
        """Wait until the last update's weights are whole. A collective over all ranks."""
        self.overlap.complete_weights()

    def slices(self, table: ShardingTable) -> Iterator[StateSlice]:
        """Yield the optimizer's state on this rank, and weights that no optimizer has.

        Groups must be active.
        """
        return state_slices(made_tensors(self.chunks), table, list(self._optimizers()))

    @property
    def updates(self) -> int:
        """Optimizer steps taken so far."""
        return int(self.schedule.num_steps)

    def restore(self, updates: int) -> None:
        """Set the number of updates taken; the moments keep their values."""
        # The schedule sets the groups' learning rate only in `step`.
        self.schedule.num_steps = 0
        self.schedule.step(increment=updates)
        for part in self._optimizers():
            # Some versions of Adam keep the step count in the group.
            for group in part.optimizer.param_groups:
                if "step" in group:
                    group["step"] = updates
            for state in part.optimizer.state.values():
                if "step" in state:
                    state["step"] = torch.tensor(float(updates))

    def state(self, part: StatePart) -> Iterator[Tensor]:
        """Yield the tensors of one part of the training state."""
        match part:
            case StatePart.PARAMETERS:
                yield from self._parameters()
            case StatePart.GRADIENTS:
                yield from (buffer.grad_data for buffer in self._buffers())
            case StatePart.OPTIMIZER:
                # Moments and float32 main weights, except those that alias the training weights.
                owned = {tensor.untyped_storage()._cdata for tensor in self._parameters()}
                for tensor in self._optimizer_tensors():
                    # Step counts are 0-dimensional and stay on their device.
                    if tensor.dim() > 0 and tensor.untyped_storage()._cdata not in owned:
                        yield tensor

    def _parameters(self) -> Iterator[Tensor]:
        for buffer in self._buffers():
            # Without the distributed optimizer the parameters keep their own storages.
            if buffer.param_data is not None:
                yield buffer.param_data
        for chunk in self.chunks:
            yield from (parameter.data for parameter in chunk.parameters())
            # In the sharding table, but not a parameter in Megatron.
            for name, buffer in chunk.module.named_buffers():
                if name.endswith("router.expert_bias"):
                    yield buffer

    def _buffers(self) -> Iterator[Any]:
        for chunk in self.chunks:
            yield from chunk.buffers
            yield from chunk.expert_parallel_buffers

    def _optimizers(self) -> Iterator[Any]:
        """Yield the optimizers of dense parameters and of experts, as far as this rank has them."""
        for part in getattr(self.optimizer, "chained_optimizers", [self.optimizer]):
            if not part.is_stub_optimizer:
                yield part

    def _optimizer_tensors(self) -> Iterator[Tensor]:
        for part in self._optimizers():
            for group in part.optimizer.param_groups:
                yield from group["params"]
            for state in part.optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))

    def _allocate_moments(self) -> None:
        """Allocate Adam's moments as zeros; otherwise its first step would allocate them.

        A worker's memory is planned before the first step and must not change afterwards: steps of
        torch's Adam are taken tensor by tensor.
        """
        for part in self._optimizers():
            part.init_state_fn(part.optimizer, part.config)
            if isinstance(part.optimizer, torch.optim.Adam):
                # A non-empty state must be complete; other versions keep the step count in the
                # group.
                for state in part.optimizer.state.values():
                    state.setdefault("step", torch.tensor(0.0))
                # On devices torch would make the roots of all second moments at the same time.
                for group in part.optimizer.param_groups:
                    group["foreach"] = False


def _schedule(
    optimizer: MegatronOptimizer, learning: LearningConfig, updates: int
) -> OptimizerParamScheduler:
    warmup_updates = int(learning.lr_warmup_fraction * updates)
    return OptimizerParamScheduler(
        optimizer,
        # The first update has a non-zero rate, and the one after the warm-up the peak.
        init_lr=learning.lr / (warmup_updates + 1),
        max_lr=learning.lr,
        min_lr=learning.min_lr,
        lr_warmup_steps=warmup_updates,
        # Megatron requires that the decay ends after the warm-up.
        lr_decay_steps=max(updates, warmup_updates + 1),
        lr_decay_style=learning.lr_decay_style,
        start_wd=learning.weight_decay,
        end_wd=learning.weight_decay,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
