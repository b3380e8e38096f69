"""Candidates of a proposal: every layout of a model over devices that the rules of a run allow.

Pure. A candidate is loaded like every other configuration and checked by the rules of a run, so
every proposal can run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal, get_args

from mindrl.allocation.meaning import layout_string
from mindrl.config.backends import TRAINING_BACKEND, TrainingBackend
from mindrl.config.finding import Finding, divisors
from mindrl.config.layout_keys import SIZE_KEYS, Role
from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.config.text import nested
from mindrl.config.validate import findings
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.decoder import Parameters, forward_cost, parameters_of
from mindrl.models.description import ModelDescription
from mindrl.platform.device import PLATFORMS
from mindrl.platform.device_models import DeviceModel
from mindrl.preflight.checks import platform_findings
from mindrl.preflight.model_checks import model_findings
from mindrl.preflight.shared_prompts import shares_prompts

Algorithm = Literal["grpo", "ppo", "distill"]
_ESTIMATORS: Mapping[Algorithm, str] = {"grpo": "group_norm", "ppo": "gae", "distill": "teacher"}
Part = Literal["optimizer", "reference", "training weights"]
PARTS: tuple[Part, ...] = get_args(Part)
"""State that may be offloaded, of every role that has it. A teacher is offloaded as a reference."""

ROLLOUT_SHARE = 0.8
"""Share of a device for all regions during rollout; the engine's work space is the rest."""
MOST_DEVICES = 4096
"""Maximum number of devices to plan for."""
MICRO_BATCHES = (1, 2, 4, 8)
_ENGINE_STEP_TOKENS = 8192
MOST_AT_A_TIME = 256
"""Maximum number of sequences that a rollout replica decodes together."""
_TOKENS_OF_A_RANK = 4096
"""Minimum tokens of the longest sequence on a context-parallel rank."""
_KL_COEF = 0.001
_WHOLE = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
"""Megatron's settings for full recomputation."""
_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class TeacherModel:
    """A model that is only read."""

    load: str
    """Model folder, as in the configuration."""
    model: ModelDescription


@dataclass(frozen=True, kw_only=True)
class Task:
    """The request to the planner."""

    load: str
    """Model folder, as in the configuration."""
    model: ModelDescription
    device: DeviceModel
    devices: int
    devices_per_node: int
    host_bytes: int
    """Host memory of one node."""
    prompt_tokens: int
    response_tokens: int
    prompts: int
    """Prompts per step."""
    samples: int
    """Responses per prompt."""
    algorithm: Algorithm
    teacher: "TeacherModel | None" = None
    """The teacher of a distillation, in place of a reference."""
    engine: TrainingBackend = TRAINING_BACKEND
    """Training engine of all models."""
    names_engine: bool = False
    """Whether to write engine and layout as one string, for Megatron too."""
    placement: Mapping[str, Any] = field(default_factory=dict)
    """Keys for the order of steps, and for separate rollout devices."""

    def texts(self, candidate: "Candidate") -> tuple[str, str]:
        """Return a candidate's layouts as strings."""
        return layout_string(candidate.training, self.engine), layout_string(candidate.rollout)

    @property
    def sequences(self) -> int:
        """Sequences per step."""
        return self.prompts * self.samples

    @property
    def longest(self) -> int:
        """Length of the longest sequence, in tokens."""
        return self.prompt_tokens + self.response_tokens

    def sequences_of(self, rollout: RolloutLayout) -> int:
        """Return the sequences of a rollout replica, the maximum over replicas."""
        return -(-self.sequences // rollout.dp)

    @property
    def ranks_per_node(self) -> int:
        """Devices that the run uses on a node."""
        return min(self.devices, self.devices_per_node)

    @property
    def has_critic(self) -> bool:
        """Whether a critic is trained."""
        return self.algorithm == "ppo"

    @cached_property
    def plain_config(self) -> RunConfig:
        """Configuration with data parallelism alone, for keys that are the same in every layout."""
        training, rollout = TrainLayout(dp=self.devices), RolloutLayout(dp=self.devices)
        return candidate_config(self, Candidate(training=training, rollout=rollout), Settings())

    @cached_property
    def reads_actor(self) -> bool:
        """Whether the actor's log-probs need a separate pass, in every layout."""
        return self.plain_config.old_log_probs == "recompute"

    @cached_property
    def shares_prompts(self) -> bool:
        """Whether samples of a micro-batch share their prompt, in every layout without a ring."""
        return shares_prompts(self.plain_config, "actor", self.model, self.device.kind)

    @cached_property
    def parameters(self) -> Parameters:
        """Parameter counts of the model."""
        return parameters_of(self.model)

    @cached_property
    def forward_operations(self) -> tuple[float, float]:
        """Factors of T and of T**2 in the floating-point operations of T tokens."""
        return forward_cost(self.model)

    @cached_property
    def models(self) -> dict[Role, ModelDescription]:
        """Models of the run, in the actor's layout; all but a teacher have the actor's sizes."""
        critic: tuple[Role, ...] = ("critic",) if self.has_critic else ()
        own: tuple[Role, ...] = ("actor", self.frozen, *critic)
        models = dict.fromkeys(own, self.model)
        return models if self.teacher is None else models | {self.frozen: self.teacher.model}

    @property
    def frozen(self) -> Literal["ref", "teacher"]:
        """The model that never changes."""
        return "ref" if self.teacher is None else "teacher"

    @cached_property
    def of_frozen(self) -> "Task":
        """The same run for a policy with the sizes of the model that never changes."""
        if self.teacher is None:
            return self
        return replace(self, model=self.teacher.model, teacher=None, algorithm="grpo")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Choices other than the layouts."""

    micro_batch_size: int = 1
    recomputes: bool = False
    """Whether the backward pass recomputes the activations of each layer."""
    offloads: frozenset[Part] = frozenset(PARTS)
    """State that is offloaded while unused; gradients always are, without a copy."""
    at_a_time: int = 1
    """Sequences that a rollout replica decodes together."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Layouts of both sides."""

    training: TrainLayout
    rollout: RolloutLayout


def legal_training(task: Task) -> list[TrainLayout]:
    """Return every training layout that the rules allow, regardless of the rollout's."""
    rollout = RolloutLayout(dp=task.devices)
    pairs = (Candidate(training=each, rollout=rollout) for each in _training_sizes(task))
    return [pair.training for pair in pairs if all(map(_is_of_rollout, refusals(task, pair)))]


def legal_rollout(task: Task) -> list[RolloutLayout]:
    """Return every rollout layout that the rules allow."""
    training, found = TrainLayout(dp=task.devices), []
    for tp in divisors(task.devices):
        # Keep experts whole if each rank gets one: the matrices of a cut expert are narrow.
        whole = task.model.moe is not None and tp <= task.model.moe.num_experts
        rollout = RolloutLayout(tp=tp, dp=task.devices // tp, ep=tp if whole else 1)
        pair = Candidate(training=training, rollout=rollout)
        if not any(map(_is_of_rollout, refusals(task, pair))):
            found.append(rollout)
    return found


def _is_of_rollout(finding: Finding) -> bool:
    return finding.field.startswith("generate_config.infer_")


def refusals(task: Task, candidate: Candidate, settings: Settings | None = None) -> list[Finding]:
    """Return the findings of a run's rules on a candidate, except memory."""
    config = candidate_config(task, candidate, settings or Settings())
    return [
        *findings(config),
        *platform_findings(config, PLATFORMS[task.device.kind]),
        *model_findings(config, task.models),
    ]


def candidate_config(task: Task, candidate: Candidate, settings: Settings) -> RunConfig:
    """Return the configuration of a candidate."""
    return load_run_config(nested(config_values(task, candidate, settings)))


def most_at_a_time(task: Task, rollout: RolloutLayout, room: int) -> int:
    """Return how many sequences a replica with room for `room` decodes, in equal waves."""
    of_replica = task.sequences_of(rollout)
    waves = -(-of_replica // min(room, MOST_AT_A_TIME))
    return -(-of_replica // waves)


def config_values(task: Task, candidate: Candidate, settings: Settings) -> dict[str, Any]:
    """Return the keys of a candidate's configuration that differ from their defaults."""
    training, rollout = candidate.training, candidate.rollout
    values: dict[str, Any] = {
        **_task_values(task),
        "megatron_training.sequence_parallel": training.tp > 1,
        **{
            f"actor_config.{key}": count
            for size, key in SIZE_KEYS.items()
            if (count := getattr(training, size)) > 1
        },
        "actor_config.micro_batch_size": settings.micro_batch_size,
        "generate_config.infer_tensor_parallel_size": rollout.tp,
        "generate_config.infer_expert_parallel_size": rollout.ep,
        "generate_config.max_num_seqs": settings.at_a_time,
    }
    if training.layers_per_chunk is not None:
        values["actor_config.num_layer_list"] = list(training.layers_per_chunk)
    if task.engine != TRAINING_BACKEND:
        values["actor_config.backend"] = task.texts(candidate)[0]
    critic = ("critic_config",) if task.has_critic else ()
    if settings.recomputes:
        whole = _WHOLE if task.engine == TRAINING_BACKEND else {"archon.ac_mode": "full"}
        for section in ("actor_config", *critic):
            values |= {f"{section}.{key}": value for key, value in whole.items()}
    leaves = settings.offloads
    values[f"{task.frozen}_config.offload_param"] = "reference" in leaves
    trained = {
        "optimizer": "optimizer" in leaves,
        "grad": True,
        "param": "training weights" in leaves,
    }
    for section in ("generate_config", *critic):
        values |= {f"{section}.offload_train_{part}": leaving for part, leaving in trained.items()}
    return values


def written_values(task: Task, candidate: Candidate, settings: Settings) -> dict[str, Any]:
    """Return the keys for a file: `config_values`, or one string instead of the training sizes."""
    values = config_values(task, candidate, settings)
    if task.names_engine:
        for key in SIZE_KEYS.values():
            values.pop(f"actor_config.{key}", None)
        values["actor_config.backend"] = task.texts(candidate)[0]
    return values


def _task_values(task: Task) -> dict[str, Any]:
    """Return the keys that all candidates share."""
    taught = {} if task.teacher is None else {"teacher_config.load": task.teacher.load}
    return {
        **taught,
        "megatron_training.train_iters": _STEPS,
        "megatron_training.global_batch_size": task.prompts,
        "megatron_training.seq_length": task.longest,
        "megatron_training.data_path": "./data/train.jsonl",
        "actor_config.load": task.load,
        "rl_config.device": task.device.kind,
        "rl_config.actor_resource.num_npus": task.devices,
        "rl_config.actor_resource.npus_per_node": task.devices_per_node,
        "rl_config.n_samples_per_prompt": task.samples,
        "rl_config.mini_batch_size": task.prompts,
        "rl_config.max_prompt_length": task.prompt_tokens,
        "rl_config.adv_estimator": _ESTIMATORS[task.algorithm],
        "rl_config.init_kl_coef": _KL_COEF if task.teacher is None else 0.0,
        "rl_config.device_memory_mib": task.device.memory_mib,
        "generate_config.gpu_memory_utilization": ROLLOUT_SHARE,
        "generate_config.max_model_len": task.longest,
        "generate_config.max_num_batched_tokens": max(_ENGINE_STEP_TOKENS, task.longest),
        "generate_config.sampling_config.max_tokens": task.response_tokens,
        **task.placement,
    }


def _training_sizes(task: Task) -> Iterator[TrainLayout]:
    layers = task.model.num_hidden_layers
    for tp, cp, pp in product(divisors(task.devices), repeat=3):
        shares_tokens = cp == 1 or cp * _TOKENS_OF_A_RANK <= task.longest
        if task.devices % (tp * cp * pp) or pp > layers or not shares_tokens:
            continue
        # Rejects most before a configuration is built for the rules.
        if task.model.num_attention_heads % (tp * cp):
            continue
        ranks = task.devices // pp
        for etp, ep in _expert_sizes(task.model, tp, ranks):
            yield TrainLayout(
                tp=tp,
                cp=cp,
                pp=pp,
                dp=ranks // (tp * cp),
                ep=ep,
                etp=etp,
                layers_per_chunk=_layers(layers, pp),
            )


def _expert_sizes(model: ModelDescription, tp: int, ranks: int) -> Iterator[tuple[int, int]]:
    """Yield how the ranks of a stage may share experts: (etp, ep).

    Experts are whole, cut like all other weights, or cut as little as their number allows: for the
    same memory whole experts communicate less.
    """
    if model.moe is None:
        yield 1, 1
        return
    for etp in divisors(ranks):
        more = divisors(etp)[1:]
        for ep in divisors(ranks // etp):
            wholes = [model.moe.num_experts % (ep * each) == 0 for each in (1, *more)]
            if wholes[0] and (etp in (1, tp) or not any(wholes[1:])):
                yield etp, ep


def _layers(layers: int, pp: int) -> tuple[int, ...] | None:
    """Return the layers of each stage, the longer ones first; None if all are equal."""
    least, more = divmod(layers, pp)
    return tuple(least + (stage < more) for stage in range(pp)) if more else None
