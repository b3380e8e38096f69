"""The whole configuration of a run, and the numbers that follow from it."""

from dataclasses import replace
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
from mindrl.config.generate import GenerateConfig
from mindrl.config.layout_keys import RESOURCES, ROLLOUT_SIZE_KEYS, SIZE_KEYS, Role
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.profiler import ProfilerConfig
from mindrl.config.rl import COVARIANCE_LOSSES, RLConfig, RolloutCorrection
from mindrl.config.role import ActorConfig, CriticConfig, LearningConfig, RefConfig, RewardConfig
from mindrl.config.section import SECTION
from mindrl.config.sft import SFTConfig
from mindrl.config.spool import SpoolConfig
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.layouts.placement import NodeMap, placed

OTHER_REFERENCE = "rl_config.integrated_mode_config.ref_model_load_path"
"""The other name of `ref_config.load`."""
_LAYERS = "num_layer_list"


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RunConfig:
    """The sections of a run."""

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
    rl_config: RLConfig
    """The algorithm, its rewards, the devices and what is watched."""
    generate_config: GenerateConfig
    """The rollout engine, its layout and its sampling."""
    data_config: DataConfig = DataConfig()
    """Data sets besides the two files of `megatron_training`."""
    spool_config: SpoolConfig = SpoolConfig()
    """The folder that joins a train job and rollout jobs."""
    sft_config: SFTConfig | None = None
    """Supervised fine-tuning: what is learned from. None learns from rewards."""
    profiler_config: ProfilerConfig = ProfilerConfig()
    """Timelines of steps, and profiles of what workers do in them."""

    @property
    def world_size(self) -> int:
        """Processes that train, one per device; they roll out too, unless that is apart."""
        return max(self.role_devices(role).stop for role in self.roles)

    def role_devices(self, role: Role) -> range:
        """Return the devices of a role, of all that train."""
        actor, own = self.rl_config.actor_resource, self.value_of(RESOURCES[role])
        first = actor.first_npu if own.first_npu is None else own.first_npu
        return range(first, first + (own.num_npus or actor.num_npus))

    @property
    def is_spread(self) -> bool:
        """Whether a role is on some of the training devices, and not on all."""
        return any(self.role_devices(role) != range(self.world_size) for role in self.roles)

    @property
    def is_apart(self) -> bool:
        """Whether the rollout has devices of its own."""
        return not self.rl_config.use_integrated_worker

    @property
    def rollout_devices(self) -> int:
        """Devices of the rollout, its own or all; 0 where its own are not given."""
        own = self.rl_config.rollout_resource.num_npus or 0
        return own if self.is_apart else self.world_size

    @property
    def starts_engines(self) -> bool:
        """Whether engines on devices of their own are processes of the run, and no servers."""
        return self.is_apart and not self.generate_config.servers

    @property
    def rollout_backend(self) -> str:
        """The engine that generates, by the name that its string begins with."""
        named = self.generate_config.backend.partition(":")[0]
        return named if named in SERVED_BACKENDS else ROLLOUT_BACKEND

    @property
    def devices(self) -> int:
        """Devices of the run, with a worker process on each."""
        return self.world_size + (self.rollout_devices if self.starts_engines else 0)

    @property
    def placement(self) -> NodeMap:
        """Where the training world lies and, where rollout is apart, behind it each replica's."""
        rl, rollout = self.rl_config, self.rollout_layout
        replicas = [rollout.world_size // rollout.replicas] * rollout.replicas
        worlds = [self.world_size, *(replicas if self.starts_engines else ())]
        if not rl.rollout_resource.first:
            return placed(worlds, rl.actor_resource.npus_per_node)
        found = placed([*worlds[1:], worlds[0]], rl.actor_resource.npus_per_node)
        return replace(found, first_nodes=(found.first_nodes[-1], *found.first_nodes[:-1]))

    @property
    def roles(self) -> tuple[Role, ...]:
        """The models of the run that lie in training layouts; of one that rolls out, its sizes.

        A reference that is the actor's base is none of its own.
        """
        if not self.learns:
            return ("actor",)
        there = {
            "ref": self.uses_reference and not self.reference_is_base,
            "critic": self.critic_config is not None,
            "reward": self.reward_config is not None,
        }
        return tuple(role for role in get_args(Role) if there.get(role, True))

    def training_backend(self, role: Role) -> TrainingBackend:
        """Return the engine that trains a role: its string's, the actor's, or Megatron."""
        return training_backend_of(self.value_of(self.backend_key(role)))

    def backend_key(self, role: Role) -> str:
        """Return the key of the string that says which engine trains a role."""
        own = f"{role}_config.backend"
        return own if self.value_of(own) else "actor_config.backend"

    def _stages_are_the_actors(self, role: Role) -> bool:
        sizes = (self.value_of(f"{role}_config.{SIZE_KEYS[name]}") for name in ("pp", "vpp"))
        actors = (getattr(self.actor_config, SIZE_KEYS[name]) for name in ("pp", "vpp"))
        return all(own in (None, size) for own, size in zip(sizes, actors, strict=True))

    def layout_keys(self, role: Role) -> dict[str, str]:
        """Return the key of each size of a role's layout, by the names of a `TrainLayout`.

        It is the actor's where the role gives none.
        """

        def owner(key: str) -> str:
            return "actor" if self.value_of(f"{role}_config.{key}") is None else role

        keys = {name: f"{owner(key)}_config.{key}" for name, key in SIZE_KEYS.items()}
        # The actor's layers are of its stages and chunks.
        given = (
            self._stages_are_the_actors(role)
            and owner(_LAYERS) == "actor"
            and self.actor_config.num_layer_list is not None
        )
        return keys | {"layers_per_chunk": f"{'actor' if given else role}_config.{_LAYERS}"}

    def layout(self, role: Role) -> TrainLayout:
        """Return a role's training layout, in the engine's own order of the ranks.

        Sizes that a section does not give are the actor's; replicas take all its devices. One that
        has findings has sizes, and no order. Where nothing learns, nothing is cut.
        """
        if not self.learns:
            return TrainLayout(dp=self.world_size)
        sizes = {name: self.value_of(key) for name, key in self.layout_keys(role).items()}
        layout = TrainLayout(**sizes)
        folds = layout.vpp == 2 and self.schedule(role) == "ZBVZeroBubble"
        devices = self.role_devices(role)
        replicas = len(devices) // layout.ranks_per_replica
        return replace(layout, dp=replicas, folds=folds, first_rank=devices.start)

    def schedule(self, role: Role) -> Schedule | None:
        """Return the order of the passes in a role's pipeline; None where Megatron has its own."""
        if self.training_backend(role) == TRAINING_BACKEND:
            return None
        chunks = self.value_of(self.layout_keys(role)["vpp"])
        return self.learning(role).archon.schedule(chunks)

    @property
    def rollout_layout(self) -> RolloutLayout:
        """The layout of the rollout; only one without findings can be made."""
        keys = ROLLOUT_SIZE_KEYS.items()
        sizes = {name: getattr(self.generate_config, key) for name, key in keys}
        return RolloutLayout(**sizes, dp=self.rollout_devices // sizes["tp"])

    @property
    def rolls_out(self) -> bool:
        """Whether this run has an engine; without one it trains on what is there."""
        stored = self.rl_config.debug == "train_only" or self.spool_config.job == "train"
        return not stored and self.sft_config is None

    @property
    def learns(self) -> bool:
        """Whether this run has models that learn; without them it rolls out and rates."""
        return self.rl_config.debug != "rollout_only" and self.spool_config.job != "rollout"

    @property
    def watched_steps(self) -> int:
        """Steps whose memory timeline is written; where nothing learns nothing comes and goes."""
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
        """Optimizer steps that follow one rollout."""
        per_epoch = self.megatron_training.global_batch_size // self.rl_config.mini_batch_size
        return per_epoch * self.rl_config.epochs

    def total_updates(self, role: Literal["actor", "critic"]) -> int:
        """Return the optimizer steps of a role in the whole run."""
        waits = self.rl_config.critic_warmup if role == "actor" else 0
        return self.updates_per_step * (self.megatron_training.train_iters - waits)

    @property
    def reward_weights(self) -> dict[str, dict[str, float]]:
        """Weights of the reward functions by `data_source`; that of rows without one is empty.

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
        """Whether there is anything to evaluate on."""
        return self.data_config.evaluates or self.megatron_training.test_data_path is not None

    @property
    def tokenizer_path(self) -> str:
        """Folder of the tokenizer."""
        return self.megatron_training.tokenizer_name_or_path or self.actor_config.load

    def model_key(self, role: Role) -> str:
        """Return the key that names the folder of a role's model."""
        own = f"{role}_config.load"
        if role in ("actor", "reward") or self.value_of(own):
            return own
        if role == "ref" and self.value_of(OTHER_REFERENCE):
            return OTHER_REFERENCE
        return "actor_config.load"

    def model_path(self, role: Role) -> str:
        """Return the folder of a role's model; `reward` needs its section."""
        path = self.value_of(self.model_key(role))
        assert isinstance(path, str), role
        return path

    def value_of(self, key: str) -> Any:
        """Return the value of a dotted key; None where its section, or such a key, is not there.

        A number takes one of a list: `data_config.eval_sets.0.samples`.
        """
        at: Any = self
        for part in key.split("."):
            at = at[int(part)] if isinstance(at, tuple) else getattr(at, part, None)
        return at

    def learning(self, role: Role) -> LearningConfig:
        """Return how a role's model is trained; one that never changes may group its experts."""
        if role == "critic" and self.critic_config is not None:
            return self.critic_config
        if role == "actor":
            return self.actor_config
        # What recomputes nothing backward needs no recomputation.
        actor = self.actor_config
        grouped = role == "ref" and actor.moe_grouped_gemm
        alike = self._stages_are_the_actors(role)
        schedule = actor.archon.pp_schedule if alike else None
        return LearningConfig(
            moe_grouped_gemm=grouped,
            archon=ArchonConfig(pp_schedule=schedule, fsdp_size=actor.archon.fsdp_size),
        )

    def micro_batching(self, role: Role, *, learns: bool) -> MicroBatching:
        """Return how a role's sequences are cut, by their number or by tokens.

        For an update where it learns, else for its log-probs, values or rewards.
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
        """Where the old log-probs come from: the fastest way that is exact, or as asked."""
        asked, early = self.rl_config.old_log_probs, self.needs_log_prob_pass
        return asked or ("recompute" if early else "from_update")

    @property
    def needs_log_prob_pass(self) -> str:
        """Why an update cannot find the old log-probs itself; empty where it can."""
        rl, dropout = self.rl_config, self.actor_config.lora.dropout
        reasons = {
            f"{self.updates_per_step} updates a step": self.updates_per_step > 1,
            "rl_config.use_kl_in_reward=true": self.reward_kl_coef > 0,
            f"rl_config.critic_warmup={rl.critic_warmup}": rl.critic_warmup > 0,
            f"rl_config.policy_loss={rl.policy_loss}": rl.policy_loss in COVARIANCE_LOSSES,
            f"actor_config.lora.dropout={dropout:g}": dropout > 0,
        }
        return ", ".join(reason for reason, holds in reasons.items() if holds)

    @property
    def overlong_buffer(self) -> int:
        """Tokens over which the length penalty grows."""
        asked = self.rl_config.overlong_buffer
        return self.generate_config.sampling_config.max_tokens // 5 if asked is None else asked

    @property
    def rollout_correction(self) -> RolloutCorrection | None:
        """What makes up for the engine, with the level that it has; None where nothing does."""
        rl, asked = self.rl_config, self.rl_config.rollout_correction
        goes_on = rl.partial_rollout or rl.step_order == "asynchronous"
        goes_on = goes_on or self.spool_config.job is not None
        stale = rl.step_order == "one_step_off" or (goes_on and rl.max_staleness > 0)
        alike = self.generate_config.dtype == "float32" and not stale
        alike = alike or self.old_log_probs == "from_rollout"
        level = asked.level or ("off" if alike else "token")
        rejects = asked.reject_below is not None or asked.reject_above is not None
        return replace(asked, level=level) if rejects or level != "off" else None

    @property
    def uses_reference(self) -> bool:
        """Whether a reference model is loaded at all."""
        return self.rl_config.init_kl_coef > 0

    @property
    def reference_is_base(self) -> bool:
        """Whether the reference is the actor without its adapters, in the same memory."""
        same = (self.training_backend, self.layout, self.model_path)
        alike = all(of("ref") == of("actor") for of in same)
        return self.learns and self.uses_reference and self.actor_config.lora.r > 0 and alike

    @property
    def reads_actor(self) -> bool:
        """Whether a pass before the update reads the actor, as it is or as the reference."""
        return self.old_log_probs == "recompute" or self.reference_is_base

    @property
    def changing_roles(self) -> tuple[Role, ...]:
        """The models that a step may change, and a checkpoint has to hold."""
        changes = {"ref": self.rl_config.ref_update_interval > 0, "reward": False}
        return tuple(role for role in self.roles if changes.get(role, True))

    def resets_reference(self, step: int) -> bool:
        """Say whether the reference has the weights that the actor begins this step with."""
        interval = self.rl_config.ref_update_interval
        return interval > 0 and step > 1 and (step - 1) % interval == 0

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far the policy ratio counts below and above 1."""
        rl = self.rl_config
        both, low, high = rl.clip_ratio, rl.clip_ratio_low, rl.clip_ratio_high
        return both if low is None else low, both if high is None else high

    @property
    def loss_kl_coef(self) -> float:
        """Weight of the KL term in the actor's loss."""
        return 0.0 if self.rl_config.use_kl_in_reward else self.rl_config.init_kl_coef

    @property
    def reward_kl_coef(self) -> float:
        """Weight of the KL term in the reward of each token."""
        return self.rl_config.init_kl_coef if self.rl_config.use_kl_in_reward else 0.0
