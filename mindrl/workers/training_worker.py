"""All models of a run that are trained or evaluated, in one process; they share the device."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from mindrl.algorithms.losses import Loss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import CriticMinibatch, PolicyUpdate, WeightedSequences
from mindrl.batch.likely_tokens import LikelyTokens
from mindrl.batch.parcels import Parcel
from mindrl.batch.sequences import Logprobs, Sequences, SequenceScores, Values
from mindrl.checkpoint.commits import SavedFiles, verify_share
from mindrl.checkpoint.export import keep_folder
from mindrl.config.layout_keys import Role
from mindrl.errors import CheckpointError
from mindrl.memory.plan import MemoryPlan
from mindrl.memory.schedule import ROLE_REGIONS, Phase, Region
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.platform.host_memory import process_memory
from mindrl.training.engine import KeptRoutes, TrainingEngine
from mindrl.workers.device import WorkerDevice
from mindrl.workers.sharding_manager import ShardingManager
from mindrl.workers.state_saver import StateSaver
from mindrl.workers.weight_export import WeightExport
from mindrl.workers.weight_links import WeightLinks

_CHANGES_IN: Mapping[Role, Phase] = {
    "actor": Phase.TRAIN,
    "critic": Phase.CRITIC_TRAIN,
    "ref": Phase.REFERENCE,
}


@dataclass(frozen=True, kw_only=True)
class RoleUpdates:
    """Settings of a role's updates, and the export of the updated weights."""

    micro_batching: MicroBatching
    loss: Loss[Any]
    export: WeightExport
    keeps_logprobs: bool = False
    """Whether updates return the log-probs from before the step."""


@dataclass(frozen=True, kw_only=True)
class RoleModel:
    """The model of a role, and how its batches are split."""

    engine: TrainingEngine
    micro_batching: MicroBatching
    others: tuple[TrainingEngine, ...] = ()
    """Further models of the role, which take turns with the first on the device."""
    is_base: bool = False
    """Whether the role is the engine's model without its adapters."""
    changes: bool = False
    """Whether a step may change its weights: they are then in checkpoints."""
    updates: RoleUpdates | None = None
    """None for a role that is not trained."""

    @property
    def trained(self) -> RoleUpdates:
        """Settings of its updates."""
        assert self.updates is not None, "the role is trained"
        return self.updates


@dataclass(kw_only=True)
class TrainingWorker:
    """Evaluates and trains on one device; all ranks of a role make the same calls for it.

    Everything has been placed on the device and offloaded. A call for a role that is not on this
    rank raises KeyError.
    """

    models: Mapping[Role, RoleModel]
    """Models of the roles on this rank."""
    device: WorkerDevice
    sharding_manager: ShardingManager
    nonfinite: Counter[str] = field(default_factory=Counter)
    """Number of NaN and Inf per kind of result of this rank, since the last flush."""
    links: WeightLinks | None = None
    """Links to rollout replicas on their own devices."""

    def __post_init__(self) -> None:
        """Locate the state of the models that change."""
        held = self.device.held
        engines = {role: model.engine for role, model in self.models.items() if model.changes}
        self.saver = StateSaver(
            engines, {role: [held[name] for name in ROLE_REGIONS[role]] for role in engines}
        )

    def link_address(self) -> tuple[str, int]:
        """Return the address at which this run's links are joined."""
        return self._ways.address

    def open_link(self, replica: int, generation: int) -> str | None:
        """Join a link with the ranks of a rollout replica, in their `join_link`. A collective.

        Returns why it failed, such as missing ranks; None on success.
        """
        return self._ways.open(replica, generation)

    def send_weights(self, replicas: Sequence[int]) -> dict[int, str]:
        """Send the actor's weights to replicas. A collective with the receiving ranks.

        Returns the reason for each replica with a failed link, the same on all ranks; these links
        are closed.
        """
        with self.sharding_manager.sending(self._ways.in_flight_bytes):
            return self._ways.send(replicas)

    def compute_log_prob(self, sequences: Sequences) -> Logprobs | None:
        """Return log-probs of this replica's sequences under the current weights.

        Forward passes of all models return None on ranks without the head.
        """
        return self._logprobs("actor", Phase.FORWARD, sequences)

    def compute_ref_log_prob(self, sequences: Sequences) -> Logprobs | None:
        """Return log-probs under the reference, or the actor's base model."""
        own = Region.REFERENCE_WEIGHTS in self.device.held
        return self._logprobs("ref", Phase.REFERENCE if own else Phase.FORWARD, sequences)

    def compute_teacher_log_prob(self, sequences: Sequences) -> Logprobs | None:
        """Return log-probs under the teacher of all of these sequences."""
        number = 0 if sequences.teacher_B is None else int(sequences.teacher_B[0])
        name = Region.TEACHER_WEIGHTS
        if turns := self.device.turns.get(name):
            self.sharding_manager.exchange(name, turns[number])
        return self._logprobs("teacher", Phase.TEACHER, sequences, number)

    def keep_routes(self, *parcels: Parcel | None) -> None:
        """Keep the routes of sampled sequences; a parcel is None if its engine has ended."""
        for parcel in parcels:
            if parcel is not None:
                self._routes.keep(parcel.content)

    def retain_routes(self, keys: Collection[int]) -> None:
        """Forget the routes of all sampled sequences but these. A collective over the actor."""
        self._routes.retain(keys)

    def reset_reference(self) -> None:
        """Copy the actor's weights into the reference.

        They are read from the host, or the device if they never leave it: a forward pass of the
        reference has room in both cases.
        """
        self.sharding_manager.enter(Phase.REFERENCE)
        actor, reference = self.models["actor"].engine, self.models["ref"].engine
        source = self.device.contents(Region.ACTOR_WEIGHTS, actor.local_tensors())
        own = reference.local_tensors()
        assert source.keys() == own.keys(), "validated: one model in one layout"
        for name, tensor in own.items():
            tensor.copy_(source[name])
        self.device.held[Region.REFERENCE_WEIGHTS].changed()

    def compute_values(self, sequences: Sequences) -> Values | None:
        """Return the value of each response token of this replica's sequences."""
        return self._values("critic", Phase.CRITIC_FORWARD, "critic_values", sequences)

    def compute_scores(self, sequences: Sequences) -> Values | None:
        """Return the scores of the reward model in training at response positions."""
        return self._values("actor", Phase.FORWARD, "actor_scores", sequences)

    def compute_rewards(self, sequences: Sequences) -> SequenceScores | None:
        """Return the reward of each of this replica's sequences, at its last token."""
        read = self._read("reward", Phase.REWARD, sequences, at_end=True)
        if read is None:
            return None
        rewards_B = read[0].sum(dim=1)
        self._note("reward_scores", rewards_B)
        return SequenceScores(rewards_B=rewards_B)

    def update(self, minibatch: WeightedSequences) -> PolicyUpdate:
        """Run one optimizer step of the actor on this replica's share."""
        kept: list[Tensor] = []

        def keep(logprobs_BT: Tensor) -> None:
            self._note("actor_logprobs", logprobs_BT[minibatch.response_mask_BT])
            kept.append(logprobs_BT)

        asked = keep if self.models["actor"].trained.keeps_logprobs else None
        metrics = self._update("actor", Phase.TRAIN, minibatch, asked)
        return PolicyUpdate(metrics=metrics, logprobs_BT=kept[0] if kept else None)

    def update_critic(self, minibatch: CriticMinibatch) -> dict[str, float]:
        """Run one optimizer step of the critic on this replica's share."""
        return self._update("critic", Phase.CRITIC_TRAIN, minibatch)

    def export(self, folder: str, record: Mapping[str, object]) -> None:
        """Export the actor's weights to a Hugging Face folder, with a record about them."""
        self.sharding_manager.enter(Phase.FORWARD)
        self.models["actor"].trained.export.write(Path(folder), record)

    def export_critic(self, folder: str, record: Mapping[str, object]) -> None:
        """Export the critic's weights to a Hugging Face folder, with a record about them."""
        self.sharding_manager.enter(Phase.CRITIC_FORWARD)
        self.models["critic"].trained.export.write(Path(folder), record)

    def save_bytes(self) -> int:
        """Return the bytes that this rank writes of a checkpoint."""
        return self.saver.nbytes()

    def begin_save(self, folder: str) -> None:
        """Start writing the state of the trained models to a folder, in the background."""
        self.saver.request(Path(folder))
        self.saver.start()

    def finish_save(self) -> SavedFiles:
        """Wait for `begin_save`; return the files that this rank has written, or why it failed.

        Does not raise on a disk error: all ranks finish before the driver acts on it.
        """
        return self.saver.finish()

    def verify_checkpoint(self, folder: str) -> str | None:
        """Verify this rank's share of a checkpoint's files; return what is damaged, if anything."""
        try:
            verify_share(Path(folder), dist.get_rank(), dist.get_world_size())
        except CheckpointError as error:
            return str(error)
        return None

    def restore(self, folder: str, updates: Mapping[Role, int]) -> None:
        """Restore a checkpoint. A collective over all ranks.

        Raises:
            CheckpointError: A file is damaged, or lacks something.
        """
        for role, count in updates.items():
            if role not in self.models:
                continue
            self.sharding_manager.enter(_CHANGES_IN[role])
            self.saver.restore(role, Path(folder), count)
            self.device.held[ROLE_REGIONS[role][0]].changed()
        dist.barrier()

    def keep_export(self, folder: str, kept: str) -> None:
        """Keep a folder that this rank has exported under a second name.

        Raises:
            OutputError: It cannot be written.
        """
        keep_folder(Path(folder), Path(kept))

    def memory_plan(self) -> MemoryPlan:
        """Return the memory plan of all devices."""
        return self.device.plan

    def record_memory(self, is_on: bool) -> None:
        """Start or stop recording the regions on the device at each moment."""
        self.sharding_manager.record(is_on=is_on)

    def flush_moments(self) -> list[MeasuredSnapshot]:
        """Return the moments recorded since the last call."""
        return self.sharding_manager.flush_moments()

    def flush_metrics(self) -> dict[str, float]:
        """Return times and bytes of the last switches, host memory, and non-finite counts."""
        memory = process_memory()
        nonfinite, self.nonfinite = self.nonfinite, Counter()
        bad = {f"nonfinite/{what}": float(count) for what, count in nonfinite.items()}
        sent = self.links.flush_metrics() if self.links is not None else {}
        return (
            self.sharding_manager.flush_metrics()
            | bad
            | sent
            | {
                "memory/host_arena_bytes": float(self.device.arena.nbytes),
                "memory/rss_bytes": float(memory.rss_bytes),
                "memory/peak_rss_bytes": float(memory.peak_rss_bytes),
            }
        )

    @property
    def _routes(self) -> KeptRoutes:
        routes = self.models["actor"].engine.routes
        assert routes is not None, "validated: the model replays its experts"
        return routes

    @property
    def _ways(self) -> WeightLinks:
        assert self.links is not None, "rollout is apart"
        return self.links

    def _logprobs(
        self, role: Role, phase: Phase, sequences: Sequences, turn: int = 0
    ) -> Logprobs | None:
        read = self._read(role, phase, sequences, turn=turn)
        if read is None:
            return None
        self._note(f"{role}_logprobs", read[0][sequences.response_mask_BT])
        logprobs_BT, *found = read
        if not found:
            return Logprobs(logprobs_BT=logprobs_BT)
        ids_KR, logprobs_KR = found
        counts_B = sequences.response_mask_BT.sum(dim=1)
        likely = LikelyTokens(ids_KR=ids_KR, logprobs_KR=logprobs_KR, counts_B=counts_B)
        return Logprobs(logprobs_BT=logprobs_BT, likely=likely)

    def _values(self, role: Role, phase: Phase, what: str, sequences: Sequences) -> Values | None:
        read = self._read(role, phase, sequences)
        if read is None:
            return None
        self._note(what, read[0][sequences.response_mask_BT])
        return Values(values_BT=read[0])

    def _note(self, what: str, numbers: Tensor) -> None:
        if count := int((~numbers.isfinite()).sum()):
            self.nonfinite[what] += count

    def _read(
        self,
        role: Role,
        phase: Phase,
        sequences: Sequences,
        *,
        at_end: bool = False,
        turn: int = 0,
    ) -> tuple[Tensor, ...] | None:
        self.sharding_manager.enter(phase)
        model = self.models[role]
        engine = (model.engine, *model.others)[turn]
        adapters = model.engine.adapters if model.is_base else None
        if role != "actor":
            sequences = replace(sequences, route_keys_B=None)
        with nullcontext() if adapters is None else adapters.off():
            return engine.forward(sequences, model.micro_batching, at_end=at_end)

    def _update(
        self,
        role: Role,
        phase: Phase,
        minibatch: WeightedSequences,
        keep: Callable[[Tensor], None] | None = None,
    ) -> dict[str, float]:
        self.sharding_manager.enter(phase)
        engine, updates = self.models[role].engine, self.models[role].trained
        metrics = engine.train_step(minibatch, updates.micro_batching, updates.loss, keep=keep)
        for what in ("loss", "gradient"):
            if f"nonfinite/{what}" in metrics:
                self.nonfinite[f"{role}_{what}"] += 1
        return metrics
