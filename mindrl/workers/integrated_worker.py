"""All roles of a run in one process: the actor with its engine, reference, critic, reward model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from mindrl.algorithms.value_loss import ValueLoss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import CriticMinibatch, Logprobs, Sequences, SequenceScores, Values
from mindrl.checkpoint.new_folder import keep_folder
from mindrl.memory.plan import MemoryPlan
from mindrl.memory.regions import Phase, Region
from mindrl.observability.memory import process_memory
from mindrl.observability.memory_snapshot import MeasuredSnapshot
from mindrl.training.megatron.critic import TrainedCritic
from mindrl.training.megatron.model import ModelSettings
from mindrl.training.megatron.optimizer import OptimizerSettings
from mindrl.training.megatron.scoring import ScoringModel
from mindrl.training.megatron.value import ValueModel
from mindrl.training.state_part import StatePart
from mindrl.workers.actor_hybrid_worker import ActorHybridWorker, ActorSettings
from mindrl.workers.device import WorkerDevice
from mindrl.workers.stored_region import StoredRegion
from mindrl.workers.weight_sync import WeightExport

CRITIC_REGIONS = {
    Region.CRITIC_WEIGHTS: StatePart.PARAMETERS,
    Region.CRITIC_GRADIENTS: StatePart.GRADIENTS,
    Region.CRITIC_OPTIMIZER: StatePart.OPTIMIZER,
}


@dataclass(frozen=True, kw_only=True)
class ReadOnlySettings:
    """Where a model that never changes comes from and how it is run."""

    load: str
    model: ModelSettings
    micro_batching: MicroBatching


@dataclass(frozen=True, kw_only=True)
class CriticSettings:
    """Everything that a critic is built from."""

    load: str
    model: ModelSettings
    optimizer: OptimizerSettings
    loss: ValueLoss
    head_seed: int
    """Of the value head, where the folder has none."""
    micro_batching: MicroBatching
    forward_micro_batching: MicroBatching


@dataclass(frozen=True, kw_only=True)
class RolesSettings:
    """The roles of a run; None for one that it does without."""

    actor: ActorSettings
    reference: ReadOnlySettings | None
    critic: CriticSettings | None
    reward: ReadOnlySettings | None


class Reference:
    """The model that the policy is held to."""

    def __init__(
        self, settings: ReadOnlySettings, device: WorkerDevice, *, temperature: float
    ) -> None:
        """Read it; it has left the device where it may."""
        self.settings = settings
        self.device = device
        self.model = ScoringModel(settings.load, settings.model, temperature=temperature)
        self.weights: StoredRegion = device.hold(Region.REFERENCE_WEIGHTS, self.model.weights())
        device.clear([Region.REFERENCE_WEIGHTS])

    def initial_weights(self) -> Mapping[str, Tensor]:
        """Return its weights by their local names: a policy of the same folder begins with them."""
        local = self.model.local_tensors()
        if Region.REFERENCE_WEIGHTS not in self.device.movable:
            return local
        return {name: self.weights.host_copy(tensor) for name, tensor in local.items()}


class IntegratedWorker(ActorHybridWorker):
    """An actor beside whatever else the run needs; each has the device for its turn."""

    def __init__(self, settings: RolesSettings, device: WorkerDevice) -> None:
        """Build all roles, one after the other.

        Raises:
            ModelError: A model folder does not hold a supported model.
            DeviceMemoryError: One role alone does not fit.
        """
        self.roles = settings
        if settings.reward is not None:
            self.reward = ValueModel(settings.reward.load, settings.reward.model, head_seed=None)
            device.hold(Region.REWARD_WEIGHTS, self.reward.weights())
            device.clear([Region.REWARD_WEIGHTS])
        if settings.critic is not None:
            self.critic = _critic(settings.critic, device)
            self.critic_weights = WeightExport(
                settings.critic.load, self.critic, settings.actor.transit, name="critic"
            )
        initial = None
        if settings.reference is not None:
            self.reference = Reference(
                settings.reference, device, temperature=settings.actor.temperature
            )
            if _same_weights(settings.reference, settings.actor):
                initial = self.reference.initial_weights()
        super().__init__(settings.actor, device, initial)

    def compute_ref_logprobs(self, sequences: Sequences) -> Logprobs | None:
        """Score this replica's sequences with the reference.

        Returns:
            None on all but the last pipeline stage.
        """
        role = self.roles.reference
        assert role is not None
        self.sharding_manager.enter(Phase.REFERENCE)
        return self.reference.model.compute_logprobs(sequences, role.micro_batching)

    def compute_values(self, sequences: Sequences) -> Values | None:
        """Ask the critic about this replica's sequences.

        Returns:
            None on all but the last pipeline stage.
        """
        role = self._critic_role(Phase.CRITIC_FORWARD)
        return self.critic.model.compute_values(sequences, role.forward_micro_batching)

    def update_critic(self, minibatch: CriticMinibatch) -> dict[str, float]:
        """Take one optimizer step of the critic on this replica's share."""
        role = self._critic_role(Phase.CRITIC_TRAIN)
        return self.critic.update(minibatch, role.micro_batching)

    def compute_rewards(self, sequences: Sequences) -> SequenceScores | None:
        """Rate this replica's sequences with the reward model.

        Returns:
            None on all but the last pipeline stage.
        """
        role = self.roles.reward
        assert role is not None
        self.sharding_manager.enter(Phase.REWARD)
        return self.reward.compute_rewards(sequences, role.micro_batching)

    def export(self, folder: str, record: Mapping[str, object]) -> None:
        """Export the actor's weights to a Hugging Face folder, with a record of them."""
        self.save(Path(folder), record)

    def keep_export(self, folder: str, kept: str) -> None:
        """Keep an exported folder under a second name, by the rank that wrote it.

        Raises:
            OutputError: It cannot be written.
        """
        if dist.get_rank() == 0:
            keep_folder(Path(folder), Path(kept))

    def memory_plan(self) -> MemoryPlan:
        """Return what lies on every device at each moment."""
        return self.device.plan

    def export_critic(self, folder: str, record: Mapping[str, object]) -> None:
        """Export the critic's weights to a Hugging Face folder, with a record of them."""
        self._critic_role(Phase.CRITIC_FORWARD)
        self.critic_weights.export(Path(folder), record)
        dist.barrier()

    def record_memory(self, is_on: bool) -> None:
        """Note from now on what lies on the device at each moment, or no longer."""
        self.sharding_manager.record(is_on=is_on)

    def flush_moments(self) -> list[MeasuredSnapshot]:
        """Return what was noted since the last call."""
        return self.sharding_manager.flush_moments()

    def flush_metrics(self) -> dict[str, float]:
        """Return seconds and bytes of the last switches and this process's memory."""
        memory = process_memory()
        return self.sharding_manager.flush_metrics() | {
            "memory/host_arena_bytes": float(self.device.arena.nbytes),
            "memory/rss_bytes": float(memory.rss_bytes),
            "memory/peak_rss_bytes": float(memory.peak_rss_bytes),
        }

    def _critic_role(self, phase: Phase) -> CriticSettings:
        role = self.roles.critic
        assert role is not None
        self.sharding_manager.enter(phase)
        return role


def _critic(settings: CriticSettings, device: WorkerDevice) -> TrainedCritic:
    values = ValueModel(settings.load, settings.model, head_seed=settings.head_seed)
    critic = TrainedCritic(values, settings.optimizer, settings.loss)
    for name, part in CRITIC_REGIONS.items():
        device.hold(name, critic.tensors(part))
    device.clear(CRITIC_REGIONS)
    return critic


def _same_weights(reference: ReadOnlySettings, actor: ActorSettings) -> bool:
    """Say whether each rank holds the same tensors of the same file in both roles."""
    ours, theirs = reference.model, actor.model
    same_table = (ours.layout, ours.grouped_experts) == (theirs.layout, theirs.grouped_experts)
    return same_table and reference.load == actor.load
