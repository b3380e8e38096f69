"""Section `rl_config`: the algorithm, its rewards, the devices and what is watched."""

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
    Sequences,
    Tokens,
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
"""Those that compare the responses to one prompt with each other."""
ESTIMATORS = (*GROUP_ESTIMATORS, "remax", "reinforce_plus_plus", "gae")
"""Those of `mindrl.algorithms.estimators`."""
ACCURACY = "accuracy"
"""Of `filter_groups_metric`: the scores that accuracy is measured by."""
KlPenalty = Literal["k1", "k2", "k3", "kl", "mse", "low_var_kl", "abs"]
COVARIANCE_LOSSES = ("clip_cov", "kl_cov")
"""Those that pick tokens by their old log-probs before an update."""
POLICY_LOSSES = (
    *("clipped", "dual_clip", "gspo", "gmpo", "cispo", "sapo", "plain"),
    *COVARIANCE_LOSSES,
)
"""Those of `mindrl.algorithms.policy_losses`."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RolloutCorrection:
    """What makes up for an engine that draws tokens with other probabilities than the trainer's."""

    level: Literal["off", "token", "sequence"] | None = None
    """Multiply the advantage of each token by its probability in the trainer over that in the
    engine: `token`, its own; `sequence`, the product over its response; `off`, by 1. None takes
    `token`, and `off` where `generate_config.dtype` is float32 and no response is older than the
    weights of its step (`rl_config.partial_rollout`, `rl_config.step_order`), or
    `rl_config.old_log_probs` is `from_rollout`."""
    beyond: Literal["truncate", "mask"] = "truncate"
    """A weight beyond its bounds becomes `max_weight`, or 0, and its token counts for nothing."""
    max_weight: Positive = 2.0
    """Largest weight."""
    min_weight: Coefficient = 0.0
    """Least weight that counts, with `mask`."""
    reject_below: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Leave out responses the geometric mean of whose tokens' ratios is below this."""
    reject_above: Annotated[float, Field(gt=1.0, le=1e6)] | None = None
    """The same above this."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RLConfig:
    """The algorithm, its rewards, the devices and what is watched."""

    use_integrated_worker: bool = True
    """Full colocation: all roles share each device. False gives the rollout devices of its own,
    `rollout_resource`; [Placement](../explanation/placement.md) says when that is worth it."""
    allocation_mode: str | None = None
    """Deprecated: the layouts of all engines in one string, such as `vllm:d4t2|megatron:d2p2t2`.
    [Allocation strings](allocation-strings.md#all-engines-in-one-string) says more."""
    blocking: bool = True
    """Each stage of a step waits for the one before it. False rates the responses on the host while
    the devices compute log-probs and values: the same numbers, sooner."""
    device: Literal["auto", "npu", "gpu", "cpu"] = "auto"
    """Kind of device. `auto` takes NPU, else GPU, else CPU, whichever is there first."""
    actor_resource: ActorResource = ActorResource()
    """Devices of the run; where the rollout has its own, those that train; of the actor alone,
    where other roles have others."""
    critic_resource: RoleResource = RoleResource()
    """Devices of the critic, where it has others than the actor;
    [Placement](../explanation/placement.md#roles-on-devices-of-their-own) says what that does."""
    reference_resource: RoleResource = RoleResource()
    """Devices of the reference, likewise."""
    reward_resource: RoleResource = RoleResource()
    """Devices of the reward model, likewise."""
    rollout_resource: RolloutResource = RolloutResource()
    """Devices of the rollout, with `use_integrated_worker: false`."""
    integrated_mode_config: IntegratedModeConfig = IntegratedModeConfig()
    """Settings of the roles that share the actor's process."""

    n_samples_per_prompt: Annotated[int, Field(ge=1, le=1 << 16)] = 8
    """Responses drawn per prompt: the group that most advantage estimators compare, which then
    needs 2 or more."""
    mini_batch_size: Sequences
    """Prompts per optimizer step. Divides `megatron_training.global_batch_size`."""
    epochs: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Passes over the sequences of one rollout."""
    shuffle_mini_batch: bool = False
    """Deal the prompts of a step to its mini-batches at random, anew in each epoch."""
    actor_forward_micro_batch_size: Sequences | None = None
    """Sequences per forward pass of the log-probs. None takes `actor_config.micro_batch_size`."""
    ref_forward_micro_batch_size: Sequences | None = None
    """The same for the reference. None takes `actor_config.micro_batch_size`."""
    critic_forward_micro_batch_size: Sequences | None = None
    """Sequences per forward pass of the values. None takes `critic_config.micro_batch_size`."""
    reward_forward_micro_batch_size: Sequences | None = None
    """Sequences per forward pass of the reward model. None takes
    `reward_config.micro_batch_size`."""
    use_remove_padding: bool = True
    """Sequences of a micro-batch are packed one behind the other; no pad token enters the model.
    False pads each to the longest: the same gradient, more work."""
    use_dynamic_bsz: bool = False
    """Micro-batches are cut by tokens, `max_packing_token_size`, and no longer by sequences, and
    sequences are dealt so that all data-parallel ranks have the same work."""
    max_packing_token_size: Tokens = 4096
    """Most tokens of a micro-batch on one data-parallel rank, with `use_dynamic_bsz`."""
    actor_max_packing_token_size: Tokens | None = None
    """The same for the log-probs. None takes `max_packing_token_size`."""
    ref_max_packing_token_size: Tokens | None = None
    """The same for the reference. None takes `max_packing_token_size`."""
    update_max_packing_token_size: Tokens | None = None
    """The same for the update. None takes `max_packing_token_size`."""
    guarantee_order: bool = True
    """MindSpeed-RL's key. Sequences keep a fixed order in any case: false changes nothing."""
    reproducible_sampling: bool = True
    """Draw each response with a seed of its own: it is the same in every layout and batch. False
    lets the engine draw a batch at a time: repeatable in one layout, and faster on an accelerator;
    [by how much](../how-to/faster-rollouts.md#seeds). Not with `partial_rollout`."""
    max_prompt_length: Tokens = 512
    """Longest prompt in tokens."""
    overlong_prompt_policy: Literal["error", "drop"] = "error"
    """A longer prompt ends the run before it starts, or is dropped, counted and logged."""

    old_log_probs: Literal["recompute", "from_update", "from_rollout"] | None = None
    """Where the log-probs of the policy that the updates of a step start from come from:
    `recompute`, a pass of its own; `from_update`, the forward pass of the update itself, for steps
    of one update; `from_rollout`, the engine that drew the tokens. None takes `from_update`, or
    `recompute` where something needs them sooner, or later.
    [Algorithms](../explanation/algorithms.md#the-old-log-probs) says what that is."""
    rollout_correction: RolloutCorrection = RolloutCorrection()
    """What makes up for an engine that draws tokens with other probabilities than the trainer's."""
    adv_estimator: str = "group_norm"
    """Advantage estimator: `group_norm` (GRPO), `group_mean` (Dr. GRPO), `rloo`, `opo`,
    `pass_at_k`, `reinforce_plus_plus`, `reinforce_plus_plus_baseline`; `remax`, which answers each
    prompt once more, greedily; `gae` (PPO), which needs a `critic_config`; or a function of your
    own. [Algorithms](../explanation/algorithms.md) says what each computes."""
    gamma: Fraction = 1.0
    """Discount of a token in the returns, with `gae` and `reinforce_plus_plus`."""
    lam: Fraction = 0.95
    """Lambda of `gae`: 0 trusts the critic, 1 the rewards."""
    cliprange_value: Bound = 0.5
    """With `gae`: a value counts only within its old value -/+ cliprange_value, in units of
    reward."""
    critic_warmup: Count = 0
    """Steps at the start of the run that train the critic alone."""
    policy_loss: str = "clipped"
    """What each token adds to the loss of the policy: `clipped` (PPO, GRPO, DAPO), `dual_clip`,
    `gspo`, `gmpo`, `cispo`, `sapo`, `plain`, `clip_cov`, `kl_cov`, or a function of your own.
    [Algorithms](../explanation/algorithms.md) says what each computes."""
    clip_ratio: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """The policy ratio counts only within 1 - clip_ratio and 1 + clip_ratio."""
    clip_ratio_low: Bound | None = None
    """The lower side alone: 1 - clip_ratio_low. From 1 on the ratio has no lower bound. None takes
    `clip_ratio`."""
    clip_ratio_high: Bound | None = None
    """The upper side alone: 1 + clip_ratio_high, above the lower one in DAPO (arXiv 2503.14476).
    None takes `clip_ratio`."""
    dual_clip_ratio: Annotated[float, Field(gt=1.0, le=1e6)] = 3.0
    """With `dual_clip`: most of a ratio that counts where the advantage is negative."""
    sapo_tau_positive: Positive = 1.0
    """With `sapo`: how sharply a token whose advantage is positive fades with its ratio."""
    sapo_tau_negative: Positive = 1.05
    """The same where the advantage is negative."""
    clip_cov_ratio: Annotated[float, Field(gt=0.0, le=1.0)] = 2e-4
    """With `clip_cov`: share of an update's tokens that lose their gradient, one at least."""
    clip_cov_lb: Weight = 1.0
    """They are drawn from those whose covariance of log-prob and advantage is at least this, in
    nats times advantage."""
    clip_cov_ub: Weight = 5.0
    """And at most this."""
    kl_cov_ratio: Annotated[float, Field(gt=0.0, le=1.0)] = 2e-3
    """With `kl_cov`: share of an update's tokens that are held to the old policy, one at least:
    those of the largest covariance."""
    kl_cov_coef: Coefficient = 1.0
    """How strongly."""
    token_level_loss: bool = True
    """MindSpeed-RL's and TRL's name of two choices of `loss_aggregation`: True is `token_mean`,
    False `sequence_mean`."""
    loss_aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] | None = None
    """How the tokens of an update are weighed: `token_mean`, all alike (DAPO); `sequence_mean`,
    each sequence alike (GRPO); `sequence_sum`, each token by 1 over
    `generate_config.sampling_config.max_tokens` times the sequences (Dr. GRPO). None takes
    `token_level_loss`."""
    kl_penalty: KlPenalty | None = None
    """Estimator of the KL to the reference: k1 = kl, k2 = mse, k3 = low_var_kl, or abs. None takes
    k1 with `use_kl_in_reward`, as REINFORCE++ and PPO do, and k3 in the loss, as GRPO does."""
    init_kl_coef: Coefficient = 0.0
    """Weight of the KL term. At 0 no reference model is loaded."""
    use_kl_in_reward: bool = False
    """True takes the KL term from the reward of each token; False adds it to the loss."""
    ref_update_interval: Count = 0
    """Behind every so many steps the reference takes over the actor's weights (ProRL, arXiv
    2505.24864), of which it must have the model and the layout. 0: never."""
    entropy_coeff: Coefficient = 0.0
    """Weight of the entropy bonus; with `entropy_target` that of the first step."""
    entropy_target: Coefficient | None = None
    """Entropy in nats that the bonus holds up: behind a step with less its weight grows by
    `entropy_delta`, behind one with more it falls by as much, to 0 at the least, and there is none
    in the next. None keeps the weight."""
    entropy_delta: Positive = 0.005
    """Change of the weight behind each step, with `entropy_target`."""

    verifier_function: tuple[str, ...] = ("math_verify", "boxed_format")
    """Rewards: by name, as `package.module:function` or `path/to/file.py:function`, which may be a
    class too, or the address of a server. [What they get](../how-to/own-reward.md). The first one
    also measures accuracy. May be empty where there is a `reward_config` and nothing is
    evaluated."""
    verifier_weight: tuple[Weight, ...] = (1.0, 0.1)
    """Weight of each reward, in the same order."""
    verifier_kwargs: tuple[dict[str, Any], ...] = ()
    """Arguments of each reward, in the same order, for functions and for classes, which are made
    with them: `[{}, {limit: 400}]`. Empty gives none to any."""
    overlong_buffer_enable: bool = False
    """Take from the reward of a response that comes near
    `generate_config.sampling_config.max_tokens` (DAPO, arXiv 2503.14476, eq. 13)."""
    overlong_buffer: Count | None = None
    """Last tokens of those, over which the penalty grows evenly from 0. None takes a fifth of them,
    as DAPO did."""
    overlong_buffer_penalty_factor: Coefficient = 1.0
    """Penalty of the longest response."""
    overlong_filter_enable: bool = False
    """A response that `generate_config.sampling_config.max_tokens` cut adds nothing to any loss
    (the overlong filtering of DAPO); its reward still counts for its group."""
    filter_groups_enable: bool = False
    """Train on groups alone whose responses differ: those that do not are replaced by the responses
    to further prompts (the dynamic sampling of DAPO, arXiv 2503.14476)."""
    filter_groups_metric: str | None = None
    """In what they have to differ: the scores of this function of `verifier_function`, or `model`,
    or `accuracy`, the scores of the function that measures it. None: their rewards."""
    filter_groups_max_batches: Count = 10
    """Prompts that a step may draw, in units of `megatron_training.global_batch_size`; behind them
    groups without a signal fill it. 0: as many as the data has."""
    partial_rollout: bool = False
    """End the rollout of a step when as many groups as it trains on are whole; the others keep
    their tokens and go on with the weights of the next step."""
    groups_in_flight: Annotated[float, Field(ge=1.0, le=1000.0)] = 2.0
    """With `partial_rollout`: groups under way at a time, in units of
    `megatron_training.global_batch_size`."""
    max_staleness: Count = 1
    """With `partial_rollout` or `step_order: asynchronous`: most steps between the one that begins
    a group and the one that trains on it. A step waits for what would get older; nothing is
    dropped. 0 is the run without it."""
    rollout_round_steps: PositiveInt = 32
    """Steps that the engines take, a token of each sequence in one, until it is looked at again:
    with `partial_rollout`, whether groups enough are whole; with `step_order`, what is new."""
    step_order: Literal["in_turns", "one_step_off", "asynchronous"] = "in_turns"
    """Where the rollout has devices of its own: `in_turns`, it answers while the trainer waits, and
    the other way round; `one_step_off`, it answers the prompts of the next step while the trainer
    learns from this one; `asynchronous`, it answers on and on, and takes new weights in between."""
    debug: Literal["train_only", "rollout_only"] | None = None
    """Run one half of each step alone. `rollout_only` answers and rates with the first weights, and
    keeps that (`megatron_training.keep_rollouts`); no training state is built. `train_only` trains
    on what is kept in `debug_rollouts`; no engine is built, and nothing is evaluated."""
    debug_rollouts: PathText | None = None
    """With `train_only`: the folder of a run whose rollouts/ has a file of each step."""

    verifier_timeout: Annotated[float, Field(gt=0.0, le=WEEK_SECONDS)] = 5.0
    """Seconds for one answer; one late twice gets the function's worst score and is counted."""
    verifier_parallel: Annotated[int, Field(ge=1, le=4096)] = 1
    """Reward processes."""
    on_reward_failure: Literal["stop_if_all_fail", "stop", "worst"] = "stop_if_all_fail"
    """What a reward function does that raises, crashes, takes too long or returns no number.
    `stop_if_all_fail` ends the run where a function fails for all responses of a step or of an
    evaluation, and so does the first failure with `stop`; else, and in any case with `worst`, those
    responses get the function's worst score."""

    device_memory_mib: Mib | None = None
    """Memory of one device that the run may take, in MiB. None: what the device has; a CPU device
    then has no bound."""
    check_memory: bool = True
    """Refuse a run whose predicted memory exceeds the device's before it starts; False starts it
    all the same."""
    memory_timeline_steps: Count = 2
    """Steps at the start of the run whose memory timeline is written; 0 writes none."""

    test_freq: Count = 0
    """Evaluate on the held-out file, greedily, and on `data_config.eval_sets` every so many steps.
    0: only before and after."""
    max_logprob_gap: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    """Largest mean |rollout - training log-prob| of a step in nats; a larger one is warned of. None
    takes 0.01 where both sides compute in float32, else 0.1, and 0.3 for mixtures of experts; and
    no limit where `generate_config.sampling_config` cuts the distribution that the engine draws
    from, for then the gap has a floor."""
    logprob_gap_steps: PositiveInt = 3
    """Steps in a row beyond `max_logprob_gap` that end the run."""
    log_samples: Count = 4
    """Sampled responses stored per step."""
    use_tensorboard: bool = True
    """Write TensorBoard files into the run folder."""
    tracking: Tracking = Tracking()
    """Where the metrics go besides the run folder."""
    report: bool = True
    """Write `report.html` into the run folder: a page with curves, times, memory and samples, anew
    now and then while the run goes on, and at its end."""
    worker_start_timeout_seconds: Seconds = 600
    """Longest wait for the devices and for the workers to come up."""
    worker_call_timeout_seconds: Seconds = 14_400
    """Longest wait for the workers' answers to the first call of a kind, such as the first rollout;
    later ones may take 5 times the longest so far. Beyond it the run fails and names the silent
    ranks."""
    heartbeat_timeout_seconds: Seconds = 600
    """Longest time for which a worker may be stopped, or all of them without a sign of progress,
    before they are taken to hang. More than the longest thing that a healthy worker does in one
    piece: a graph that is compiled, an optimizer step on the host, one tensor on a slow disk."""

    max_restarts: Count = 3
    """How often in a row a run that loses workers starts new ones and goes on from the same
    checkpoint; each new checkpoint counts from 0. 0, or `megatron_training.save_interval=0`, ends
    the run with the first of them. Also how often in a row a rollout replica on devices of its own
    is replaced, while the run goes on."""
    device_wait_seconds: Seconds = 3600
    """Longest wait for the devices that a restart needs; beyond it the run ends."""

    on_device_loss: Literal["wait", "shrink"] = "wait"
    """What happens then: `wait` ends the run, `shrink` goes on with as many devices as are there,
    in the legal layout that is nearest to the run's own."""
    grace_seconds: Seconds | None = None
    """Longest time from the first Ctrl-C or SIGTERM until the run gives up finishing what runs, and
    ends with the checkpoint that it has. None finishes."""

    @property
    def aggregation(self) -> Literal["token_mean", "sequence_mean", "sequence_sum"]:
        """`loss_aggregation`, or what `token_level_loss` stands for."""
        if self.loss_aggregation is not None:
            return self.loss_aggregation
        return "token_mean" if self.token_level_loss else "sequence_mean"

    @property
    def kl_kind(self) -> KlPenalty:
        """`kl_penalty`, or the estimator that goes with the place of the KL term."""
        return self.kl_penalty or ("k1" if self.use_kl_in_reward else "low_var_kl")

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
