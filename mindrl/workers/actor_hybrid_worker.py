"""The actor: one process that trains with Megatron-core and rolls out with vLLM, in turns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from mindrl.algorithms.grpo import GrpoLoss
from mindrl.allocation.regions import TrainRegion
from mindrl.batch.experience import Minibatch, Scored, Sequences
from mindrl.batch.prompts import Sampling
from mindrl.batch.rollouts import Response
from mindrl.models.qwen2 import logical_shapes
from mindrl.resharding.gather import GatherReshard
from mindrl.rollout.engine import EngineSettings, RolloutEngine
from mindrl.training.actor import TrainedModel
from mindrl.training.model import ModelSettings
from mindrl.training.optimizer import OptimizerSettings
from mindrl.training.scoring import ScoringModel
from mindrl.training.weights import export_weights
from mindrl.workers.sharding_manager import Phase, ShardingManager


@dataclass(frozen=True, kw_only=True)
class ActorSettings:
    """Everything that an actor is built from."""

    load: str
    model: ModelSettings
    optimizer: OptimizerSettings
    engine: EngineSettings
    loss: GrpoLoss
    temperature: float
    micro_batch_size: int
    forward_micro_batch_size: int
    offloaded: frozenset[TrainRegion]


class WeightsInTransit:
    """The training weights of one replica, on their way into the rollout engine."""

    def __init__(self, model: ScoringModel) -> None:
        """Plan the way once: the layouts do not change."""
        self.model = model
        self.gather = GatherReshard(
            model.tables, logical_shapes(model.description), model.tensor_parallel_group
        )

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the logical tensors, whole; a collective over the training replica."""
        return self.gather.tensors(self.model.local_tensors())

    def bytes_moved(self) -> dict[str, int]:
        """Say what the last pass sent, received and copied."""
        report = self.gather.report
        return {
            "sent": report.bytes_sent,
            "received": report.bytes_received,
            "local": report.bytes_local,
        }


class ActorHybridWorker:
    """Generates, scores and learns on one device; every rank makes the same calls."""

    def __init__(self, settings: ActorSettings) -> None:
        """Build both sides; the device is left in phase `forward`.

        Raises:
            ModelError: The model folder does not hold a supported model.
        """
        self.settings = settings
        scoring = ScoringModel(settings.load, settings.model, temperature=settings.temperature)
        self.model = TrainedModel(scoring, settings.optimizer, settings.loss)
        self.inference_model = RolloutEngine(settings.engine)
        self.weights = WeightsInTransit(scoring)
        self.sharding_manager = ShardingManager(
            self.model, self.inference_model, self.weights, offloaded=settings.offloaded
        )
        self.sharding_manager.enter(Phase.FORWARD)

    def generate_sequences(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Response]:
        """Answer this replica's prompts, in order. Needs phase `rollout`."""
        self.sharding_manager.require(Phase.ROLLOUT)
        return self.inference_model.generate(prompts, sampling, seeds)

    def compute_log_prob(self, sequences: Sequences) -> Scored:
        """Score this replica's sequences with the current weights. Needs phase `forward`."""
        self.sharding_manager.require(Phase.FORWARD, Phase.TRAIN)
        return self.model.model.compute_log_prob(
            sequences, micro_batch_size=self.settings.forward_micro_batch_size
        )

    def update(self, minibatch: Minibatch) -> dict[str, float]:
        """Take one optimizer step on this replica's share. Needs phase `train`."""
        self.sharding_manager.require(Phase.TRAIN)
        return self.model.update(minibatch, micro_batch_size=self.settings.micro_batch_size)

    def save(self, folder: Path) -> None:
        """Export the weights to a Hugging Face folder. Needs training weights on the device."""
        self.sharding_manager.require(Phase.FORWARD, Phase.TRAIN)
        tensors = self.weights.tensors()
        if dist.get_rank() == 0:
            export_weights(self.settings.load, folder, tensors)
        else:
            for _ in tensors:
                pass
        dist.barrier()
