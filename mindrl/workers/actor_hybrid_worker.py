"""The actor: one process that trains with Megatron-core and rolls out with vLLM, in turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from mindrl.algorithms.grpo import GrpoLoss
from mindrl.allocation.regions import TrainRegion
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Minibatch, Scored, Sequences
from mindrl.batch.prompts import Sampling
from mindrl.batch.rollouts import Response
from mindrl.rollout.engine import EngineSettings, RolloutEngine
from mindrl.training.actor import TrainedModel
from mindrl.training.model import ModelSettings
from mindrl.training.optimizer import OptimizerSettings
from mindrl.training.scoring import ScoringModel
from mindrl.workers.sharding_manager import Phase, ShardingManager
from mindrl.workers.weights_in_transit import TransitSettings, WeightsInTransit


@dataclass(frozen=True, kw_only=True)
class ActorSettings:
    """Everything that an actor is built from."""

    load: str
    model: ModelSettings
    optimizer: OptimizerSettings
    engine: EngineSettings
    loss: GrpoLoss
    temperature: float
    micro_batching: MicroBatching
    forward_micro_batching: MicroBatching
    transit: TransitSettings
    offloaded: frozenset[TrainRegion]


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
        self.weights = WeightsInTransit(
            settings.load, self.model, self.inference_model, settings.transit
        )
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

    def compute_log_prob(self, sequences: Sequences) -> Scored | None:
        """Score this replica's sequences with the current weights. Needs phase `forward`.

        Returns:
            None on all but the last pipeline stage.
        """
        self.sharding_manager.require(Phase.FORWARD, Phase.TRAIN)
        return self.model.model.compute_log_prob(sequences, self.settings.forward_micro_batching)

    def update(self, minibatch: Minibatch) -> dict[str, float]:
        """Take one optimizer step on this replica's share. Needs phase `train`."""
        self.sharding_manager.require(Phase.TRAIN)
        return self.model.update(minibatch, self.settings.micro_batching)

    def save(self, folder: Path) -> None:
        """Export the weights to a Hugging Face folder. Needs training weights on the device."""
        self.sharding_manager.require(Phase.FORWARD, Phase.TRAIN)
        self.weights.export(folder)
        dist.barrier()
