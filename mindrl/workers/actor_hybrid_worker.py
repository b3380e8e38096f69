"""The actor: one process that trains with Megatron-core and rolls out with vLLM, in turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from mindrl.algorithms.grpo import GrpoLoss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Logprobs, Minibatch, Sequences
from mindrl.batch.rollouts import Responses
from mindrl.memory.regions import Phase, Region
from mindrl.rollout.sampling import Sampling
from mindrl.rollout.vllm.engine import EngineSettings, RolloutEngine
from mindrl.training.megatron.actor import TrainedActor
from mindrl.training.megatron.model import ModelSettings
from mindrl.training.megatron.optimizer import OptimizerSettings
from mindrl.training.megatron.scoring import ScoringModel
from mindrl.training.state_part import StatePart
from mindrl.workers.device import WorkerDevice
from mindrl.workers.sharding_manager import ShardingManager
from mindrl.workers.weight_sync import TransitSettings, WeightSync

ACTOR_REGIONS = {
    Region.ACTOR_WEIGHTS: StatePart.PARAMETERS,
    Region.ACTOR_GRADIENTS: StatePart.GRADIENTS,
    Region.ACTOR_OPTIMIZER: StatePart.OPTIMIZER,
}


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


class ActorHybridWorker:
    """Generates, scores and learns on one device; every rank makes the same calls."""

    def __init__(
        self,
        settings: ActorSettings,
        device: WorkerDevice,
        initial: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Build both sides; whatever may leave the device has left it.

        Args:
            settings: Of the actor.
            device: Where it lives.
            initial: Weights by their local names, to copy from; None reads the folder.

        Raises:
            ModelError: The model folder does not hold a supported model.
            DeviceMemoryError: One side alone does not fit.
        """
        self.settings = settings
        self.device = device
        scoring = ScoringModel(
            settings.load, settings.model, temperature=settings.temperature, source=initial
        )
        self.model = TrainedActor(scoring, settings.optimizer, settings.loss)
        held = {
            name: device.hold(name, self.model.tensors(part))
            for name, part in ACTOR_REGIONS.items()
        }

        weights = held[Region.ACTOR_WEIGHTS]

        def leave(tensor: Tensor) -> None:
            if weights.is_whole:
                device.ledger.note()
            weights.offload_storage_of(tensor)

        device.clear(ACTOR_REGIONS)
        self.inference_model = RolloutEngine(settings.engine)
        device.ledger.add(Region.ROLLOUT_WEIGHTS, self.inference_model.regions["weights"])
        device.ledger.add(Region.KV_CACHE, self.inference_model.regions["kv_cache"])
        self.inference_model.sleep()
        self.weights = WeightSync(
            settings.load,
            self.model,
            self.inference_model,
            settings.transit,
            on_last_read=leave if Region.ACTOR_WEIGHTS in device.movable else None,
        )
        self.sharding_manager = ShardingManager(
            device.ledger, self.weights, movable=device.movable, device_type=device.device_type
        )

    def generate_sequences(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> Responses:
        """Answer this replica's prompts, in order."""
        self.sharding_manager.enter(Phase.ROLLOUT)
        return self.inference_model.generate(prompts, sampling, seeds)

    def compute_logprobs(self, sequences: Sequences) -> Logprobs | None:
        """Score this replica's sequences with the current weights.

        Returns:
            None on all but the last pipeline stage.
        """
        self.sharding_manager.enter(Phase.FORWARD)
        return self.model.model.compute_logprobs(sequences, self.settings.forward_micro_batching)

    def update(self, minibatch: Minibatch) -> dict[str, float]:
        """Take one optimizer step on this replica's share."""
        self.sharding_manager.enter(Phase.TRAIN)
        return self.model.update(minibatch, self.settings.micro_batching)

    def save(self, folder: Path, record: Mapping[str, object]) -> None:
        """Export the weights to a Hugging Face folder, with what else is to be known of them."""
        self.sharding_manager.enter(Phase.FORWARD)
        self.weights.export(folder, record)
        dist.barrier()
