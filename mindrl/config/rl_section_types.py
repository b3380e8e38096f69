"""Types of the sections that `mindrl.train` takes. Written by scripts/make_section_types.py.

docs/reference/config.md explains the keys.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict


class ActorResourceKeys(TypedDict, total=False):
    """Keys of ActorResource."""

    num_npus: int
    first_npu: int
    npus_per_node: int


class RoleResourceKeys(TypedDict, total=False):
    """Keys of RoleResource."""

    num_npus: int | None
    first_npu: int | None


class RolloutResourceKeys(TypedDict, total=False):
    """Keys of RolloutResource."""

    num_npus: int | None
    first: bool


class IntegratedModeKeys(TypedDict, total=False):
    """Keys of IntegratedModeConfig."""

    ref_model_load_path: str | None


class RolloutCorrectionKeys(TypedDict, total=False):
    """Keys of RolloutCorrection."""

    level: Literal["off", "token", "sequence"] | None
    beyond: Literal["truncate", "mask"]
    max_weight: float
    min_weight: float
    reject_below: float | None
    reject_above: float | None


class TrackingKeys(TypedDict, total=False):
    """Keys of Tracking."""

    trackers: Sequence[str]
    project: str
    experiment: str | None
    offline: bool
    sample_rows: int
    sample_interval: int
    timeout_seconds: int
    prometheus_port: int | None


class RLKeys(TypedDict, total=False):
    """Keys of RLConfig."""

    use_integrated_worker: bool
    allocation_mode: str | None
    blocking: bool
    device: Literal["auto", "npu", "gpu", "cpu"]
    actor_resource: ActorResourceKeys
    critic_resource: RoleResourceKeys
    reference_resource: RoleResourceKeys
    reward_resource: RoleResourceKeys
    rollout_resource: RolloutResourceKeys
    integrated_mode_config: IntegratedModeKeys
    n_samples_per_prompt: int
    mini_batch_size: int
    epochs: int
    shuffle_mini_batch: bool
    actor_forward_micro_batch_size: int | None
    ref_forward_micro_batch_size: int | None
    critic_forward_micro_batch_size: int | None
    reward_forward_micro_batch_size: int | None
    use_remove_padding: bool
    use_dynamic_bsz: bool
    max_packing_token_size: int
    actor_max_packing_token_size: int | None
    ref_max_packing_token_size: int | None
    update_max_packing_token_size: int | None
    guarantee_order: bool
    reproducible_sampling: bool
    max_prompt_length: int
    overlong_prompt_policy: Literal["error", "drop"]
    old_log_probs: Literal["recompute", "from_update", "from_rollout"] | None
    rollout_correction: RolloutCorrectionKeys
    adv_estimator: str
    gamma: float
    lam: float
    cliprange_value: float
    critic_warmup: int
    policy_loss: str
    clip_ratio: float
    clip_ratio_low: float | None
    clip_ratio_high: float | None
    dual_clip_ratio: float
    sapo_tau_positive: float
    sapo_tau_negative: float
    clip_cov_ratio: float
    clip_cov_lb: float
    clip_cov_ub: float
    kl_cov_ratio: float
    kl_cov_coef: float
    token_level_loss: bool
    loss_aggregation: Literal["token_mean", "sequence_mean", "sequence_sum"] | None
    kl_penalty: Literal["k1", "k2", "k3", "kl", "mse", "low_var_kl", "abs"] | None
    init_kl_coef: float
    use_kl_in_reward: bool
    ref_update_interval: int
    entropy_coeff: float
    entropy_target: float | None
    entropy_delta: float
    verifier_function: Sequence[str]
    verifier_weight: Sequence[float]
    verifier_kwargs: Sequence[Mapping[str, object]]
    overlong_buffer_enable: bool
    overlong_buffer: int | None
    overlong_buffer_penalty_factor: float
    overlong_filter_enable: bool
    filter_groups_enable: bool
    filter_groups_metric: str | None
    filter_groups_max_batches: int
    partial_rollout: bool
    groups_in_flight: float
    max_staleness: int
    rollout_round_steps: int
    step_order: Literal["in_turns", "one_step_off", "asynchronous"]
    debug: Literal["train_only", "rollout_only"] | None
    debug_rollouts: str | None
    verifier_timeout: float
    verifier_parallel: int
    on_reward_failure: Literal["stop_if_all_fail", "stop", "worst"]
    device_memory_mib: int | None
    check_memory: bool
    memory_timeline_steps: int
    test_freq: int
    max_logprob_gap: float | None
    logprob_gap_steps: int
    log_samples: int
    use_tensorboard: bool
    tracking: TrackingKeys
    report: bool
    worker_start_timeout_seconds: int
    worker_call_timeout_seconds: int
    heartbeat_timeout_seconds: int
    max_restarts: int
    device_wait_seconds: int
    on_device_loss: Literal["wait", "shrink"]
    grace_seconds: int | None
