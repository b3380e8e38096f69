"""The whole configuration of a run, and numbers derived from it."""

from dataclasses import replace
from math import prod
from typing import Any, Literal, get_args

from pydantic.dataclasses import dataclass

from mindrl.batch.balance import MicroBatching
from mindrl.config.archon import ArchonConfig, Schedule
from mindrl.config.backends import (
    ROLLOUT_BACKEND,
    SERVED_BACKENDS,
    TRAINING_BACKEND,
    TrainingBackend,
    training_backend_of,
)
from mindrl.config.data import DataConfig
from mindrl.config.environment import EnvironmentConfig
from mindrl.config.generate import GenerateConfig
from mindrl.config.layout_keys import FROZEN, RESOURCES, ROLLOUT_SIZE_KEYS, SIZE_KEYS, Role
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.preference import PreferenceConfig
from mindrl.config.profiler import ProfilerConfig
from mindrl.config.rl import COVARIANCE_LOSSES, RLConfig, RolloutCorrection
from mindrl.config.role import ActorConfig, CriticConfig, LearningConfig, RefConfig, RewardConfig
from mindrl.config.section import SECTION
from mindrl.config.sft import SFTConfig
from mindrl.config.spool import SpoolConfig
from mindrl.config.teacher import TeacherConfig
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.layouts.placement import NodeMap, placed

OTHER_REFERENCE = "rl_config.integrated_mode_config.ref_model_load_path"
"""Second name of `ref_config.load`."""
_LAYERS = "num_layer_list"


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RunConfig:
    """Sections of a run."""

    megatron_training: MegatronTrainingConfig
    """The run as a whole: steps, batch, data, precision."""
    actor_config: ActorConfig
    """The actor: model folder, training layout, optimizer."""
    ref_config: RefConfig = RefConfig()
    """The reference: model folder, layout."""
    critic_config: CriticConfig | None = None
    """The critic of PPO: model folder, layout, optimizer. None without one."""
    reward_config: RewardConfig | None = None
    """The neural reward model: model folder, weight, layout. None without one."""
    teacher_config: TeacherConfig | None = None
    """The teacher of a distillation: model folder or server, weight, layout. None without one."""
    rl_config: RLConfig
    """The algorithm, its rewards, the devices, and monitoring."""
    generate_config: GenerateConfig
    """The rollout engine, its layout and its sampling."""
    data_config: DataConfig = DataConfig()
    """Data sets besides the two files of `megatron_training`."""
    environment_config: EnvironmentConfig | None = None
    """Tools and games that answer the policy's turns. None: one response to each prompt."""
    spool_config: SpoolConfig = SpoolConfig()
    """The shared folder of a train job and rollout jobs."""
    sft_config: SFTConfig | None = None
    """Supervised fine-tuning: its targets. None trains on rewards."""
    preference_config: PreferenceConfig | None = None
    """Preferences: form of the loss, columns of the rows. None trains on something else."""
    profiler_config: ProfilerConfig = ProfilerConfig()
    """Timelines of steps, and profiles of workers."""

    @property
    def world_size(self) -> int:
        """Number of training processes, one per device; they also roll out by default."""
        return max(self.role_devices(role).stop for role in self.roles)

    def role_devices(self, role: Role) -> range:
        """Return the devices of a role, as indices into all training devices."""
        actor, own = self.rl_config.actor_resource, self.value_of(RESOURCES[role])
        first = actor.first_npu if own.first_npu is None else own.first_npu
        return range(first, first + (own.num_npus or actor.num_npus))

    @property
    def is_spread(self) -> bool:
        """Whether some role is not on all training devices."""
        return any(self.role_devices(role) != range(self.world_size) for role in self.roles)

    @property
    def is_apart(self) -> bool:
        """Whether the rollout has its own devices."""
        return not self.rl_config.use_integrated_worker

    @property
    def rollout_devices(self) -> int:
        """Devices of the rollout, its own or all; 0 if its own are not given."""
        own = self.rl_config.rollout_resource.num_npus or 0
        return own if self.is_apart else self.world_size

    @property
    def starts_engines(self) -> bool:
        """Whether engines on their own devices are processes of the run instead of servers."""
        return self.is_apart and not self.generate_config.is_served

    @property
    def rollout_backend(self) -> str:
        """Name of the engine that generates, from its string."""
        named = self.generate_config.backend.partition(":")[0]
        return named if named in SERVED_BACKENDS else ROLLOUT_BACKEND

    @property
    def devices(self) -> int:
        """Devices of the run, with a worker process on each."""
        return self.world_size + (self.rollout_devices if self.starts_engines else 0)

    @property
    def placement(self) -> NodeMap:
        """Nodes of the training world and, with separate rollout, of each replica."""
        rl, rollout = self.rl_config, self.rollout_layout
        replicas = [rollout.world_size // rollout.replicas] * rollout.replicas
        worlds = [self.world_size, *(replicas if self.starts_engines else ())]
        if not rl.rollout_resource.first:
            return placed(worlds, rl.actor_resource.npus_per_node)
        found = placed([*worlds[1:], worlds[0]], rl.actor_resource.npus_per_node)
        return replace(found, first_nodes=(found.first_nodes[-1], *found.first_nodes[:-1]))

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles with training layouts; the actor for its sizes if the run only rolls out.

        A reference that equals the actor's base is not included.
        """
        if not self.learns:
            return ("actor",)
        there = {
            "ref": self.uses_reference and not self.reference_is_base,
            "critic": self.critic_config is not None,
            "reward": self.reward_config is not None,
            "teacher": self.teacher_config is not None and self.teacher_config.load is not None,
        }
        return tuple(role for role in get_args(Role) if there.get(role, True))

    def training_backend(self, role: Role) -> TrainingBackend:
        """Return the engine that trains a role: from its string, the actor's, or Megatron."""
        return training_backend_of(self.value_of(self.backend_key(role)))

    def backend_key(self, role: Role) -> str:
        """Return the key of the string that names a role's training engine."""
        own = f"{role}_config.backend"
        return own if self.value_of(own) else "actor_config.backend"

    def _stages_are_the_actors(self, role: Role) -> bool:
        sizes = (self.value_of(f"{role}_config.{SIZE_KEYS[name]}") for name in ("pp", "vpp"))
        actors = (getattr(self.actor_config, SIZE_KEYS[name]) for name in ("pp", "vpp"))
        return all(own in (None, size) for own, size in zip(sizes, actors, strict=True))

    def layout_keys(self, role: Role) -> dict[str, str]:
        """Return the key of each size of a role's `TrainLayout`: its own key or the actor's."""

        def owner(key: str) -> str:
            return "actor" if self.value_of(f"{role}_config.{key}") is None else role

        keys = {name: f"{owner(key)}_config.{key}" for name, key in SIZE_KEYS.items()}
        # The actor's layers only fit its own numbers of stages and chunks.
        given = (
            self._stages_are_the_actors(role)
            and owner(_LAYERS) == "actor"
            and self.actor_config.num_layer_list is not None
        )
        return keys | {"layers_per_chunk": f"{'actor' if given else role}_config.{_LAYERS}"}

    def layout(self, role: Role) -> TrainLayout:
        """Return a role's training layout, in the engine's own order of the ranks.

        Missing sizes of a section are the actor's; the number of replicas follows from its devices.
        A layout with findings has sizes, but no order. Without trained models nothing is sharded.
        """
        if not self.learns:
            return TrainLayout(dp=self.world_size)
        sizes = {name: self.value_of(key) for name, key in self.layout_keys(role).items()}
        layout = TrainLayout(**sizes)
        folds = layout.vpp == 2 and self.schedule(role) == "ZBVZeroBubble"
        devices = self.role_devices(role)
        replicas = len(devices) // layout.ranks_per_replica
        ulysses = self.actor_config.ulysses if layout.cp > 1 else None
        return replace(layout, dp=replicas, folds=folds, first_rank=devices.start, ulysses=ulysses)

    def schedule(self, role: Role) -> Schedule | None:
        """Return the schedule of a role's pipeline; None if Megatron uses its own."""
        if self.training_backend(role) == TRAINING_BACKEND:
            return None
        chunks = self.value_of(self.layout_keys(role)["vpp"])
        return self.learning(role).archon.schedule(chunks)

    @property
    def rollout_layout(self) -> RolloutLayout:
        """The layout of the rollout; requires a configuration without findings."""
        keys = ROLLOUT_SIZE_KEYS.items()
        sizes = {name: getattr(self.generate_config, key) for name, key in keys}
        return RolloutLayout(
            **sizes, dp=self.rollout_devices // self.generate_config.ranks_per_replica
        )

    @property
    def rolls_out(self) -> bool:
        """Whether this run has an engine; otherwise it trains on existing data."""
        stored = self.rl_config.debug == "train_only" or self.spool_config.job == "train"
        return not stored and not self.reads_answers

    @property
    def reads_answers(self) -> bool:
        """Whether rows contain the answers to train on: demonstrations or preferences."""
        return self.sft_config is not None or self.preference_config is not None

    @property
    def learns(self) -> bool:
        """Whether this run has trained models; otherwise it only rolls out and scores."""
        return self.rl_config.debug != "rollout_only" and self.spool_config.job != "rollout"

    @property
    def watched_steps(self) -> int:
        """Steps whose memory timeline is written; 0 without trained models: nothing is moved."""
        return self.rl_config.memory_timeline_steps if self.learns else 0

    @property
    def sequences_per_step(self) -> int:
        """Sequences that one step samples and trains on."""
        return self.megatron_training.global_batch_size * self.rl_config.n_samples_per_prompt

    @property
    def sequences_per_update(self) -> int:
        """Sequences of one optimizer step, over all data-parallel ranks."""
        return self.rl_config.mini_batch_size * self.rl_config.n_samples_per_prompt

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps per rollout."""
        per_epoch = self.megatron_training.global_batch_size // self.rl_config.mini_batch_size
        return per_epoch * self.rl_config.epochs

    def total_updates(self, role: Literal["actor", "critic"]) -> int:
        """Return the total number of optimizer steps of a role."""
        waits = self.rl_config.critic_warmup if role == "actor" else 0
        return self.updates_per_step * (self.megatron_training.train_iters - waits)

    @property
    def reward_weights(self) -> dict[str, dict[str, float]]:
        """Weights of the reward functions by `data_source`; the key for rows without one is empty.

        The first function of each measures accuracy.
        """
        rl = self.rl_config
        given = {"": (rl.verifier_function, rl.verifier_weight)}
        for each in self.data_config.rewards:
            given[each.data_source] = (each.verifier_function, each.verifier_weight)
        return {source: dict(zip(*pair, strict=True)) for source, pair in given.items()}

    def reward_key(self, source: str) -> str:
        """Return the key of the reward functions of a `data_source`."""
        own = [each.data_source for each in self.data_config.rewards]
        section = f"data_config.rewards.{own.index(source)}" if source in own else "rl_config"
        return f"{section}.verifier_function"

    @property
    def evaluates(self) -> bool:
        """Whether there is any evaluation data."""
        return self.data_config.evaluates or self.megatron_training.test_data_path is not None

    @property
    def tokenizer_path(self) -> str:
        """Folder of the tokenizer."""
        return self.megatron_training.tokenizer_name_or_path or self.actor_config.load

    def model_key(self, role: Role) -> str:
        """Return the key of the folder of a role's model."""
        own = f"{role}_config.load"
        if role in ("actor", "reward", "teacher") or self.value_of(own):
            return own
        if role == "ref" and self.value_of(OTHER_REFERENCE):
            return OTHER_REFERENCE
        return "actor_config.load"

    def model_path(self, role: Role) -> str:
        """Return the folder of a role's model; `reward` and `teacher` need their sections."""
        path = self.value_of(self.model_key(role))
        assert isinstance(path, str), role
        return path

    def value_of(self, key: str) -> Any:
        """Return the value of a dotted key; None if the section or the key does not exist.

        A number selects an entry of a list: `data_config.eval_sets.0.samples`.
        """
        at: Any = self
        for part in key.split("."):
            at = at[int(part)] if isinstance(at, tuple) else getattr(at, part, None)
        return at

    def learning(self, role: Role) -> LearningConfig:
        """Return how a role's model is trained, as far as it applies to that role."""
        if role == "critic" and self.critic_config is not None:
            return self.critic_config
        if role == "actor":
            return self.actor_config
        actor = self.actor_config
        grouped = role in ("ref", "teacher") and actor.moe_grouped_gemm
        alike = self._stages_are_the_actors(role)
        schedule = actor.archon.pp_schedule if alike else None
        keys, size = self.layout_keys(role), actor.archon.fsdp_size
        ranks = len(self.role_devices(role)) // prod(self.value_of(keys[n]) for n in ("tp", "pp"))
        # Without backward passes nothing is recomputed. Shards as the actor's, if the sizes allow.
        archon = ArchonConfig(pp_schedule=schedule, fsdp_size=None if ranks % (size or 1) else size)
        return LearningConfig(moe_grouped_gemm=grouped, archon=archon)

    def micro_batching(self, role: Role, *, learns: bool) -> MicroBatching:
        """Return how a role's sequences are divided, by number or by tokens.

        For an update if it learns, otherwise for its log-probs, values or rewards.
        """
        rl = self.rl_config
        sequences = self.value_of(f"rl_config.{role}_forward_micro_batch_size")
        tokens = self.value_of(f"rl_config.{role}_max_packing_token_size")
        if learns:
            sequences, tokens = None, rl.update_max_packing_token_size if role == "actor" else None
        own = self.value_of(f"{role}_config.micro_batch_size") or self.actor_config.micro_batch_size
        return MicroBatching(
            sequences=sequences or own,
            tokens=(tokens or rl.max_packing_token_size) if rl.use_dynamic_bsz else None,
        )

    @property
    def old_log_probs(self) -> Literal["recompute", "from_update", "from_rollout"]:
        """Source of the old log-probs: as configured, otherwise the fastest exact one."""
        asked, early = self.rl_config.old_log_probs, self.needs_log_prob_pass
        return asked or ("recompute" if early else "from_update")

    @property
    def needs_log_prob_pass(self) -> str:
        """Why an update cannot compute the old log-probs itself; empty if it can."""
        rl, dropout = self.rl_config, self.actor_config.lora.dropout
        reasons = {
            f"{self.updates_per_step} updates a step": self.updates_per_step > 1,
            "rl_config.use_kl_in_reward=true": self.reward_kl_coef > 0,
            "teacher_config": self.teacher_config is not None,
            f"rl_config.critic_warmup={rl.critic_warmup}": rl.critic_warmup > 0,
            f"rl_config.policy_loss={rl.policy_loss}": rl.policy_loss in COVARIANCE_LOSSES,
            f"actor_config.lora.dropout={dropout:g}": dropout > 0,
        }
        return ", ".join(reason for reason, holds in reasons.items() if holds)

    @property
    def max_staleness(self) -> int:
        """Maximum number of steps between the one that starts a group and the one that uses it."""
        rl, job = self.rl_config, self.spool_config.job
        is_in_turns = rl.step_order == "in_turns" and not rl.partial_rollout and job is None
        most = 1 if rl.step_order == "one_step_off" else rl.max_staleness
        return 0 if is_in_turns else most

    @property
    def rollout_correction(self) -> RolloutCorrection | None:
        """The correction for the engine with its effective level; None if it has no effect."""
        asked = self.rl_config.rollout_correction
        alike = self.generate_config.is_exact and not self.max_staleness
        alike = alike or self.old_log_probs == "from_rollout"
        level = asked.level or ("off" if alike else "token")
        rejects = asked.reject_below is not None or asked.reject_above is not None
        return replace(asked, level=level) if rejects or level != "off" else None

    @property
    def uses_reference(self) -> bool:
        """Whether a reference model is loaded."""
        given = self.preference_config
        return self.rl_config.init_kl_coef > 0 if given is None else given.uses_reference

    @property
    def reference_is_base(self) -> bool:
        """Whether the reference is the actor without its adapters, in the same memory."""
        same = (self.training_backend, self.layout, self.model_path)
        alike = all(of("ref") == of("actor") for of in same)
        return self.learns and self.uses_reference and self.actor_config.lora.r > 0 and alike

    @property
    def reads_actor(self) -> bool:
        """Whether a step or an evaluation has a forward pass of the actor outside the update."""
        return any((self.old_log_probs == "recompute", self.reference_is_base, self.reads_answers))

    @property
    def changing_roles(self) -> tuple[Role, ...]:
        """Models that a step may change, which a checkpoint must contain."""
        changes = dict.fromkeys(FROZEN, False) | {"ref": self.rl_config.ref_update_interval > 0}
        return tuple(role for role in self.roles if changes.get(role, True))

    @property
    def loss_kl_coef(self) -> float:
        """Weight of the KL term in the actor's loss."""
        return 0.0 if self.rl_config.use_kl_in_reward else self.rl_config.init_kl_coef

    @property
    def reward_kl_coef(self) -> float:
        """Weight of the KL term in the reward of each token."""
        return self.rl_config.init_kl_coef if self.rl_config.use_kl_in_reward else 0.0
