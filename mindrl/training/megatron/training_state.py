"""What a model needs besides its weights in order to learn: gradients and an optimizer.

Everything large that Megatron keeps lies in few storages: one flat buffer of parameters and one of
gradients per bucket group, and the optimizer's own tensors.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from mindrl.training.megatron.model import ModelSettings
from mindrl.training.megatron.optimizer import build_optimizer, take_step
from mindrl.training.state_part import StatePart


class TrainingState:
    """The data-parallel gradients of a model, and the optimizer of its weights."""

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        config: TransformerConfig,
        settings: ModelSettings,
        updates: int,
    ) -> None:
        """Wrap a model; its weights move into Megatron's flat buffers. Needs active groups.

        Args:
            chunks: This rank's part of it.
            config: Of the same.
            settings: Of the same.
            updates: Optimizer steps of the whole run.
        """
        ddp_config = DistributedDataParallelConfig(
            use_distributed_optimizer=settings.training.use_distributed_optimizer,
            grad_reduce_in_fp32=True,
        )
        self.device_type = settings.device_type
        self.chunks = [DistributedDataParallel(config, ddp_config, chunk) for chunk in chunks]
        self.optimizer, self.schedule = build_optimizer(
            self.chunks, settings.learning, settings.training, updates
        )

    def zero_gradients(self) -> None:
        """Begin a step."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

    def step(self) -> dict[str, float]:
        """End a step: see `take_step`. A collective over all ranks."""
        return take_step(self.optimizer, self.schedule, self.device_type)

    def state(self, part: StatePart) -> Iterator[Tensor]:
        """Yield the tensors of one part of the training state."""
        match part:
            case StatePart.PARAMETERS:
                return _parameter_tensors(self.chunks)
            case StatePart.GRADIENTS:
                return _gradient_tensors(self.chunks)
            case StatePart.OPTIMIZER:
                return _optimizer_tensors(self.optimizer, self.chunks)


def _parameter_tensors(chunks: Sequence[DistributedDataParallel]) -> Iterator[Tensor]:
    """Yield the buffers that hold the training weights."""
    for buffer in _buffers(chunks):
        # Without the distributed optimizer the parameters keep their own storages.
        if buffer.param_data is not None:
            yield buffer.param_data
    for chunk in chunks:
        yield from (parameter.data for parameter in chunk.parameters())
        # In the table too, and none of Megatron's parameters.
        for name, buffer in chunk.module.named_buffers():
            if name.endswith("router.expert_bias"):
                yield buffer


def _gradient_tensors(chunks: Sequence[DistributedDataParallel]) -> Iterator[Tensor]:
    """Yield the buffers that gradients accumulate in."""
    for buffer in _buffers(chunks):
        yield buffer.grad_data


def _optimizer_tensors(
    optimizer: MegatronOptimizer, chunks: Sequence[DistributedDataParallel]
) -> Iterator[Tensor]:
    """Yield moments and float32 main weights, without what aliases the training weights."""
    owned = {tensor.untyped_storage()._cdata for tensor in _parameter_tensors(chunks)}
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if part.is_stub_optimizer:  # This rank has no parameters of that kind.
            continue
        for tensor in _all_tensors(part.optimizer):
            # Step counts are 0-dimensional and stay where they are.
            if tensor.dim() > 0 and tensor.untyped_storage()._cdata not in owned:
                yield tensor


def _all_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def _buffers(chunks: Sequence[DistributedDataParallel]) -> Iterator[Any]:
    for chunk in chunks:
        yield from chunk.buffers
        yield from chunk.expert_parallel_buffers
