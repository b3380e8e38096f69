"""Section `rl_config`: the algorithm, its rewards, the devices, and monitoring."""

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.resources import (
    ActorResource,
    IntegratedModeConfig,
    RoleResource,
    RolloutResource,
)
from mindrl.config.section import (
    SECTION,
    WEEK_SECONDS,
    Bound,
    Coefficient,
    Count,
    Fraction,
    Mib,
    PathText,
    Positive,
    PositiveInt,
    Seconds,
    SequenceCount,
    TokenCount,
    Weight,
)
from mindrl.config.tracking import Tracking

GROUP_ESTIMATORS = (
    "group_norm",
    "group_mean",
    "rloo",
    "opo",
    "pass_at_k",
    "reinforce_plus_plus_baseline",
)
"""Estimators that compare the responses to one prompt with each other."""
ESTIMATORS = (*GROUP_ESTIMATORS, "remax", "reinforce_plus_plus", "gae", "teacher")
"""Names of all functions in `mindrl.algorithms.estimators` that estimate advantages."""
ACCURACY = "accuracy"
"""Value of `filter_groups_metric`: the scores that measure accuracy."""
KlPenalty = Literal["k1", "k2", "k3", "kl", "mse", "low_var_kl", "abs"]
COVARIANCE_LOSSES = ("clip_cov", "kl_cov")
"""Losses that select tokens by their old log-probs before an update."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RolloutCorrection:
    """Correction for an engine whose token probabilities differ from the trainer's."""

    level: Literal["off", "token", "sequence"] | None = None
    """Multiply the advantage of each token by its probability in the trainer divided by that in the
    engine: `token`, its own; `sequence`, the product over its response; `off`, by 1. None uses
    `token`, but `off` if `generate_config.dtype` is float32 without `generate_config.quantization`
    and no response is older than the weights of its step (`rl_config.partial_rollout`,
    `rl_config.step_order`), or if `rl_config.old_log_probs` is `from_rollout`."""
    beyond: Literal["truncate", "mask"] = "truncate"
    """What to do with a weight out of bounds: `truncate` sets it to `max_weight`; `mask` sets it to
    0, so that its token has no effect."""
    max_weight: Positive = 2.0
    """Maximum weight."""
    min_weight: Coefficient = 0.0
    """Minimum weight, with `mask`."""
    reject_below: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Exclude responses for which the geometric mean of their tokens' ratios is below this."""
    reject_above: Annotated[float, Field(gt=1.0, le=1e6)] | None = None
    """Exclude responses for which it is above this."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RLConfig:
    """The algorithm, its rewards, the devices, and monitoring."""

    use_integrated_worker: bool = True
    """Full colocation: all roles share each device. False gives the rollout its own devices,
    `rollout_resource`; see [Placement](../explanation/placement.md) for when to use that."""
    allocation_mode: str | None = None
    """Deprecated: the layouts of all engines in one string, such as `vllm:d4t2|megatron:d2p2t2`.
    See [Allocation strings](allocation-strings.md#all-engines-in-one-string)."""
    blocking: bool = True
    """Run the stages of a step in sequence. False scores each group of responses on the host when
    it is complete, while the devices generate others and compute log-probs and values: the same
    numbers, sooner. A function of lists then gets the complete groups, not all of the step."""
    device: Literal["auto", "npu", "gpu", "cpu"] = "auto"
    """Kind of device. `auto` uses the first kind present of NPU, GPU, CPU."""
    actor_resource: ActorResource = ActorResource()
    """Devices of the run; only the training devices if the rollout has its own; only the actor's if
    other roles have their own."""
    critic_resource: RoleResource = RoleResource()
    """Devices of the critic, if they differ from the actor's; see
    [Placement](../explanation/placement.md#roles-on-devices-of-their-own)."""
    reference_resource: RoleResource = RoleResource()
    """Devices of the reference, in the same way."""
    reward_resource: RoleResource = RoleResource()
    """Devices of the reward model, in the same way."""
    teacher_resource: RoleResource = RoleResource()
    """Devices of the teacher, in the same way."""
    rollout_resource: RolloutResource = RolloutResource()
    """Devices of the rollout, with `use_integrated_worker: false`."""
    integrated_mode_config: IntegratedModeConfig = IntegratedModeConfig()
    """Settings of the roles that share the actor's process."""

    n_samples_per_prompt: Annotated[int, Field(ge=1, le=1 << 16)] = 8
    """Responses sampled per prompt: the group that most advantage estimators compare, which
    requires 2 or more."""
    mini_batch_size: SequenceCount
    """Prompts per optimizer step. Divides `megatron_training.global_batch_size`."""
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Passes over the sequences of one rollout."""
    shuffle_mini_batch: bool = False
    """Assign the prompts of a step to mini-batches at random, differently in each epoch."""
    actor_forward_micro_batch_size: SequenceCount | None = None
    """Sequences per forward pass of the log-probs. None uses `actor_config.micro_batch_size`."""
    ref_forward_micro_batch_size: SequenceCount | None = None
    """The same for the reference. None uses `actor_config.micro_batch_size`."""
    critic_forward_micro_batch_size: SequenceCount | None = None
    """Sequences per forward pass of the values. None uses `critic_config.micro_batch_size`."""
    reward_forward_micro_batch_size: SequenceCount | None = None
    """Sequences per forward pass of the reward model. None uses
    `reward_config.micro_batch_size`."""
    use_remove_padding: bool = True
    """Concatenate the sequences of a micro-batch; no pad token enters the model. False pads each to
    the longest: the same gradient, more work."""
    share_prompts: bool | None = None
    """Compute a prompt once for all of its samples in a micro-batch, and once what the prompts of
    later turns repeat (`environment_config.history: rendered`), in updates and log-prob passes of
    every engine. None does so where it saves a sixth of the tokens: see
    [Packing](../explanation/packing.md#a-prompt-once-for-its-samples)."""
    use_dynamic_bsz: bool = False
    """Divide micro-batches by tokens, `max_packing_token_size`, instead of sequences, and balance
    the work of all data-parallel ranks."""
    max_packing_token_size: TokenCount = 4096
    """Maximum tokens of a micro-batch on one data-parallel rank, with `use_dynamic_bsz`."""
    actor_max_packing_token_size: TokenCount | None = None
    """The same for the log-probs. None uses `max_packing_token_size`."""
    ref_max_packing_token_size: TokenCount | None = None
    """The same for the reference. None uses `max_packing_token_size`."""
    update_max_packing_token_size: TokenCount | None = None
    """The same for the update. None uses `max_packing_token_size`."""
    guarantee_order: bool = True
    """MindSpeed-RL's key. Sequences always keep a fixed order: false has no effect."""
    reproducible_sampling: bool = True
    """Sample each response with its own seed: it is the same in every layout and batch. False lets
    the engine sample a batch together: repeatable within one layout, and faster on an accelerator;
    see [by how much](../how-to/faster-rollouts.md#seeds). Not with `partial_rollout`."""
    max_prompt_length: TokenCount = 512
    """Longest prompt in tokens."""
    overlong_prompt_policy: Literal["error", "drop"] = "error"
    """What to do with a longer prompt: `error` refuses the run before it starts; `drop` leaves it
    out, counted and logged."""

    old_log_probs: Literal["recompute", "from_update", "from_rollout"] | None = None
    """Source of the log-probs of the policy at the start of a step's updates: `recompute`, a
    separate pass; `from_update`, the forward pass of the update itself, for steps of one update;
    `from_rollout`, the engine that sampled the tokens. None uses `from_update`, or `recompute` if
    they are needed before the update, or for several. See
    [Algorithms](../explanation/algorithms.md#the-old-log-probs)."""
    rollout_correction: RolloutCorrection = RolloutCorrection()
    """Correction for an engine whose token probabilities differ from the trainer's."""
    adv_estimator: str = "group_norm"
    """Advantage estimator: `group_norm` (GRPO), `group_mean` (Dr. GRPO), `rloo`, `opo`,
    `pass_at_k`, `reinforce_plus_plus`, `reinforce_plus_plus_baseline`; `remax`, which generates one
    more greedy answer per prompt; `gae` (PPO), which needs a `critic_config`; `teacher`, which uses
    no rewards and needs a `teacher_config`; or your own function. See
    [Algorithms](../explanation/algorithms.md) for what each computes."""
    gamma: Fraction = 1.0
    """Discount per token in the returns, with `gae` and `reinforce_plus_plus`."""
    lam: Fraction = 0.95
    """Lambda of `gae`: 0 trusts the critic, 1 the rewards."""
    cliprange_value: Bound = 0.5
    """With `gae`: values are clipped to the old value -/+ cliprange_value, in units of reward."""
    critic_warmup: Count = 0
    """Number of steps at the start of the run that train only the critic."""
    policy_loss: str = "clipped"
    """Loss of the policy per token: `clipped` (PPO, GRPO, DAPO), `dual_clip`, `gspo`, `gmpo`,
    `cispo`, `sapo`, `plain`, `clip_cov`, `kl_cov`, or your own function. See
    [Algorithms](../explanation/algorithms.md) for what each computes."""
    policy_loss_options: dict[str, Any] | None = None
    """Options of that loss that are no keys of `rl_config`, such as `{tau: 0.1}`: fields of the
    [dataclass](../how-to/add-an-algorithm.md#options) of its options."""
    clip_ratio: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """The policy ratio is clipped to 1 - clip_ratio and 1 + clip_ratio."""
    clip_ratio_low: Bound | None = None
    """Lower bound only: 1 - clip_ratio_low. With 1 or more the ratio has no lower bound. None uses
    `clip_ratio`."""
    clip_ratio_high: Bound | None = None
    """Upper bound only: 1 + clip_ratio_high, larger than the lower side in DAPO (arXiv 2503.14476).
    None uses `clip_ratio`."""
    dual_clip_ratio: Annotated[float, Field(gt=1.0, le=1e6)] = 3.0
    """With `dual_clip`: maximum of the ratio for negative advantages."""
    sapo_tau_positive: Positive = 1.0
    """With `sapo`: how fast the weight of a token with a positive advantage decreases with its
    ratio."""
    sapo_tau_negative: Positive = 1.05
    """The same for negative advantages."""
    clip_cov_ratio: Annotated[float, Field(gt=0.0, le=1.0)] = 2e-4
    """With `clip_cov`: fraction of an update's tokens whose gradient is dropped, at least one
    token."""
    clip_cov_lb: Weight = 1.0
    """With `clip_cov`: minimum covariance of log-prob and advantage of these tokens, in nats times
    advantage."""
    clip_cov_ub: Weight = 5.0
    """With `clip_cov`: maximum of that covariance."""
    kl_cov_ratio: Annotated[float, Field(gt=0.0, le=1.0)] = 2e-3
    """With `kl_cov`: fraction of an update's tokens with a KL penalty to the old policy, at least
    one token: those with the largest covariance."""
    kl_cov_coef: Coefficient = 1.0
    """With `kl_cov`: coefficient of that penalty."""
    token_level_loss: bool = True
    """MindSpeed-RL's and TRL's name for two values of `loss_aggregation`: True is `token_mean`,
    False `sequence_mean`."""
    loss_aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] | None = None
    """Weighting of the tokens of an update: `token_mean`, all equal (DAPO); `sequence_mean`, all
    sequences equal (GRPO); `sequence_sum`, each token by 1 over
    `generate_config.sampling_config.max_tokens` times the number of sequences (Dr. GRPO). None uses
    `token_level_loss`."""
    kl_penalty: KlPenalty | None = None
    """Estimator of the KL to the reference: k1 = kl, k2 = mse, k3 = low_var_kl, or abs. None uses
    k1 with `use_kl_in_reward`, as REINFORCE++ and PPO do, and k3 in the loss, as GRPO does."""
    init_kl_coef: Coefficient = 0.0
    """Weight of the KL term. At 0 no reference model is loaded."""
    use_kl_in_reward: bool = False
    """True subtracts the KL term from the reward of each token; False adds it to the loss."""
    ref_update_interval: Count = 0
    """Number of steps after which the reference is set to the actor's weights, repeatedly (ProRL,
    arXiv 2505.24864); it needs the actor's model and layout. 0: never."""
    entropy_coeff: Coefficient = 0.0
    """Weight of the entropy bonus; with `entropy_target` its initial weight."""
    entropy_target: Coefficient | None = None
    """Target entropy in nats: after a step with less, the weight of the bonus grows by
    `entropy_delta`; after a step with more, it decreases by as much, to 0 at least, and the next
    step has no bonus. None keeps the weight."""
    entropy_delta: Positive = 0.005
    """Change of the weight after each step, with `entropy_target`."""

    verifier_function: tuple[str, ...] = ("math_verify", "boxed_format")
    """Rewards: built-in names, or `package.module:function` or `path/to/file.py:function`, which
    may also be a class, or the address of a server. See [their inputs](../how-to/own-reward.md).
    The first one also measures accuracy. May be empty if there is a `reward_config` and no
    evaluation."""
    verifier_weight: tuple[Weight, ...] = (1.0, 0.1)
    """Weight of each reward, in the same order."""
    verifier_kwargs: tuple[dict[str, Any], ...] = ()
    """Arguments of each reward, in the same order; a class is instantiated with them: `[{}, {limit:
    400}]`. Empty passes none."""
    overlong_buffer_enable: bool = False
    """Subtract a penalty from the reward of responses close to
    `generate_config.sampling_config.max_tokens` (DAPO, arXiv 2503.14476, eq. 13). The length of a
    conversation includes the environment's tokens, as in that limit."""
    overlong_buffer: Count | None = None
    """Number of last tokens before that limit over which the penalty grows linearly from 0. None
    uses a fifth of the limit, as in DAPO."""
    overlong_buffer_penalty_factor: Coefficient = 1.0
    """Penalty of a response of maximum length."""
    overlong_filter_enable: bool = False
    """Exclude responses cut at `generate_config.sampling_config.max_tokens` from all losses (DAPO's
    overlong filtering); their rewards still count for their groups."""
    filter_groups_enable: bool = False
    """Train only on groups whose responses differ: other groups are replaced by the responses to
    further prompts (DAPO's dynamic sampling, arXiv 2503.14476)."""
    filter_groups_metric: str | None = None
    """Quantity in which they must differ: the scores of this function of `verifier_function` or of
    `data_config.rewards`, or `model`, or `environment`, or `accuracy`, the scores of the function
    that measures it. None: their rewards."""
    filter_groups_max_batches: Count = 10
    """Number of prompts after which groups without a signal fill a step, in units of
    `megatron_training.global_batch_size`. 0: as many as the data has. If groups stay open after a
    step, it may score up to `megatron_training.global_batch_size` more."""
    partial_rollout: bool = False
    """End the rollout of a step when enough groups to train on are complete; the others keep their
    tokens and continue with the weights of the next step."""
    groups_in_flight: Annotated[float, Field(ge=1.0, le=1000.0)] = 2.0
    """With `partial_rollout`: number of concurrent groups, in units of
    `megatron_training.global_batch_size`."""
    max_staleness: Count = 1
    """With `partial_rollout` or `step_order: asynchronous`: maximum number of steps between the
    step that starts a group and the step that trains on it. A step waits for groups that would
    become older. 0 is equivalent to a run without the option."""
    rollout_round_steps: PositiveInt = 32
    """Engine steps, each with a token per sequence, between checks: with `partial_rollout`, of
    whether enough groups are complete; with `step_order`, of what is new."""
    step_order: Literal["in_turns", "one_step_off", "asynchronous"] = "in_turns"
    """If the rollout has its own devices: `in_turns`, rollout and training wait for each other;
    `one_step_off`, the responses of the next step are generated while this one is trained;
    `asynchronous`, generation is continuous and receives new weights in between."""
    debug: Literal["train_only", "rollout_only"] | None = None
    """Run only one half of each step. `rollout_only` generates and scores with the initial weights,
    and stores the results (`megatron_training.keep_rollouts`); it builds no training state.
    `train_only` trains on the stored rollouts in `debug_rollouts`; it builds no engine and
    evaluates nothing."""
    debug_rollouts: PathText | None = None
    """With `train_only`: folder of a run whose rollouts/ has a file for each step."""

    verifier_timeout: Annotated[float, Field(gt=0.0, le=WEEK_SECONDS)] = 5.0
    """Time limit in seconds per answer; an answer that exceeds it twice gets the function's worst
    score and is counted."""
    verifier_parallel: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Number of reward processes. None: one for each core of the driver's machine that the workers
    of a node leave, at least 1 and at most 16."""
    on_reward_failure: Literal["stop_if_all_fail", "stop", "worst"] = "stop_if_all_fail"
    """What to do if a reward function raises, crashes, exceeds its time limit or returns no number.
    `stop_if_all_fail` ends the run if a function fails for all responses of a step or of an
    evaluation; `stop` ends it at the first failure; otherwise, and always with `worst`, those
    responses get the function's worst score."""

    device_memory_mib: Mib | None = None
    """Memory of one device that the run may use, in MiB. None: all of the device; for CPU devices
    then no limit."""
    check_memory: bool = True
    """Refuse a run whose predicted memory exceeds the device's before it starts; False starts it
    anyway."""
    memory_timeline_steps: Count = 2
    """Number of steps at the start of the run whose memory timeline is written; 0 writes none."""

    test_freq: Count = 0
    """Steps between evaluations on the held-out file, greedily, and on `data_config.eval_sets`. 0:
    only before and after training."""
    max_logprob_gap: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    """Maximum mean |rollout - training log-prob| of a step in nats; a larger one gives a warning.
    None uses 0.01 if both sides compute in float32, otherwise 0.1, and 0.3 for mixtures of experts
    and with `generate_config.quantization`; and no limit if `generate_config.sampling_config`
    truncates the engine's distribution, because then the gap has a minimum."""
    logprob_gap_steps: PositiveInt = 3
    """Number of consecutive steps above `max_logprob_gap` that end the run."""
    log_samples: Count = 4
    """Sampled responses stored per step."""
    use_tensorboard: bool = True
    """Write TensorBoard files into the run folder."""
    tracking: Tracking = Tracking()
    """Destinations of metrics besides the run folder."""
    report: bool = True
    """Write `report.html` into the run folder: a page with curves, times, memory and samples,
    updated during the run and at its end."""
    worker_start_timeout_seconds: Seconds = 600
    """Longest wait for the devices and for the workers to start."""
    worker_call_timeout_seconds: Seconds = 14_400
    """Longest wait for the workers' answers to the first call of a kind, such as the first rollout;
    later ones may take 5 times the longest so far. After that the run fails and names the silent
    ranks."""
    heartbeat_timeout_seconds: Seconds = 600
    """Longest time that one worker may be stopped, or that all workers may be without progress,
    before they count as hung. It must exceed the longest single operation of a healthy worker:
    compiling a graph, an optimizer step on the host, one tensor on a slow disk."""

    max_restarts: Count = 3
    """Consecutive restarts of a run that loses workers: it starts new ones and resumes from the
    last checkpoint; each new checkpoint resets the count. With 0, or
    `megatron_training.save_interval=0`, the first loss ends the run. Also the consecutive
    replacements of a rollout replica on its own devices, during which the run continues."""
    device_wait_seconds: Seconds = 3600
    """Longest wait for the devices that a restart needs; after that the run ends."""

    on_device_loss: Literal["wait", "shrink"] = "wait"
    """What to do after that wait: `wait` ends the run; `shrink` continues with the available
    devices, in the legal layout nearest to the run's own."""
    grace_seconds: Seconds | None = None
    """Longest time from the first Ctrl-C or SIGTERM until the run stops finishing the current work,
    and ends with its last checkpoint. None has no limit."""

    def overlong_tokens(self, longest: int) -> int:
        """Return the number of tokens over which the length penalty grows."""
        return longest // 5 if self.overlong_buffer is None else self.overlong_buffer

    @property
    def aggregation(self) -> Literal["token_mean", "sequence_mean", "sequence_sum"]:
        """`loss_aggregation`, or the equivalent of `token_level_loss`."""
        if self.loss_aggregation is not None:
            return self.loss_aggregation
        return "token_mean" if self.token_level_loss else "sequence_mean"

    @property
    def kl_kind(self) -> KlPenalty:
        """`kl_penalty`, or the default for the place of the KL term."""
        return self.kl_penalty or ("k1" if self.use_kl_in_reward else "low_var_kl")

    def resets_reference(self, step: int) -> bool:
        """Return whether the reference is set to the actor's weights before this step."""
        interval = self.ref_update_interval
        return interval > 0 and step > 1 and (step - 1) % interval == 0

    @property
    def has_critic(self) -> bool:
        """Whether advantages come from a critic."""
        return self.adv_estimator == "gae"

    @property
    def has_baseline(self) -> bool:
        """Whether advantages compare with a greedy answer to each prompt."""
        return self.adv_estimator == "remax"

    @property
    def device_memory_bytes(self) -> int | None:
        """`device_memory_mib` in bytes."""
        return None if self.device_memory_mib is None else self.device_memory_mib << 20
