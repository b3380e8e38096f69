"""What a model needs besides its weights in order to learn: gradients and an optimizer."""

from collections.abc import Iterator, Sequence

from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from mindrl.training.megatron.model import ModelSettings
from mindrl.training.megatron.optimizer import build_optimizer, take_step
from mindrl.training.megatron.state_tensors import (
    gradient_tensors,
    optimizer_tensors,
    parameter_tensors,
)
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
                return parameter_tensors(self.chunks)
            case StatePart.GRADIENTS:
                return gradient_tensors(self.chunks)
            case StatePart.OPTIMIZER:
                return optimizer_tensors(self.optimizer, self.chunks)
