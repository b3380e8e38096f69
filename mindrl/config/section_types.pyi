# Written by scripts/make_section_types.py; docs/reference/config.md explains the keys.

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

class MegatronTrainingKeys(TypedDict, total=False):
    train_iters: int
    global_batch_size: int
    seq_length: int
    data_path: str | Sequence[str] | None
    test_data_path: str | Sequence[str] | None
    prompt_column: str
    answer_column: str | None
    system_prompt: str | None
    tokenizer_name_or_path: str | None
    chat_template: str | None
    allow_download: bool
    no_shuffle: bool
    seed: int
    deterministic: bool
    npu_deterministic: bool
    bf16: bool
    use_distributed_optimizer: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    ddp_bucket_size: int | None
    sequence_parallel: bool
    use_fused_rmsnorm: bool
    use_fused_swiglu: bool
    use_fused_rotary_pos_emb: bool
    own_models: Sequence[str]
    distributed_backend: Literal["auto", "hccl", "nccl", "gloo"]
    distributed_timeout_minutes: int
    save_interval: int
    export_interval: int | None
    keep_last: int
    keep_every: int
    keep_best: bool
    on_save_failure: Literal["stop", "skip"]
    keep_rollouts: int
    resume: str
    resume_allow: Sequence[str]
    finetune: bool
    no_load_optim: bool
    no_load_rng: bool
    on_nonfinite: Literal["skip", "stop"]

class AdamKeys(TypedDict, total=False):
    lr: float
    min_lr: float
    weight_decay: float
    clip_grad: float
    adam_beta1: float
    adam_beta2: float
    adam_eps: float

class ArchonKeys(TypedDict, total=False):
    pp_schedule: (
        Literal[
            "1F1B",
            "Interleaved1F1B",
            "InterleavedZeroBubble",
            "ZBVZeroBubble",
            "I1F1B",
            "IZB",
            "ZBV",
        ]
        | None
    )
    enable_compile: bool
    ac_mode: Literal["none", "full", "selective", "memory_budget"]
    selective_ac_option: str
    ac_memory_budget: float
    ac_debug: bool
    fsdp_size: int | None

class LearningKeys(AdamKeys, total=False):
    recompute_granularity: Literal["selective", "full"] | None
    recompute_method: Literal["uniform", "block"] | None
    recompute_num_layers: int | None
    moe_aux_loss_coeff: float
    moe_router_load_balancing_type: Literal["aux_loss", "seq_aux_loss"]
    moe_grouped_gemm: bool
    lr_decay_style: Literal["constant", "linear", "cosine"]
    lr_warmup_fraction: float
    archon: ArchonKeys

class LoRAKeys(TypedDict, total=False):
    r: int
    alpha: float
    target_modules: Sequence[str]
    dropout: float
    load: str | None

class ActorKeys(LearningKeys, total=False):
    load: str
    sizes: str | None
    save: str | None
    backend: str
    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int
    num_layer_list: Sequence[int] | None
    context_parallel_size: int
    context_parallel_algo: Literal["ulysses_cp_algo", "megatron_cp_algo", "hybrid_cp_algo"]
    ulysses_degree_in_cp: int | None
    expert_model_parallel_size: int
    expert_tensor_parallel_size: int
    micro_batch_size: int
    logprob_chunk_tokens: int
    router_replay: Literal["none", "R2", "R3"]
    freeze_vision_tower: bool
    lora: LoRAKeys

class RoleLayoutKeys(TypedDict, total=False):
    backend: str
    tensor_model_parallel_size: int | None
    pipeline_model_parallel_size: int | None
    virtual_pipeline_model_parallel_size: int | None
    num_layer_list: Sequence[int] | None
    context_parallel_size: int | None
    expert_model_parallel_size: int | None
    expert_tensor_parallel_size: int | None

class RefKeys(RoleLayoutKeys, total=False):
    load: str | None
    offload_param: bool

class CriticKeys(RoleLayoutKeys, LearningKeys, total=False):
    load: str | None
    save: str | None
    micro_batch_size: int | None
    offload_train_param: bool
    offload_train_grad: bool
    offload_train_optimizer: bool

class RewardKeys(RoleLayoutKeys, total=False):
    load: str
    weight: float
    micro_batch_size: int | None
    offload_param: bool

class SourceTeacherKeys(TypedDict, total=False):
    data_source: str
    load: str

class TeacherKeys(RoleLayoutKeys, total=False):
    load: str | None
    url: str | None
    token_file: str | None
    models: Sequence[SourceTeacherKeys]
    advantage_coef: float
    candidates: int
    divergence: Literal["reverse", "forward"]
    divergence_coef: float
    micro_batch_size: int | None
    offload_param: bool

class ActorResourceKeys(TypedDict, total=False):
    num_npus: int
    first_npu: int
    npus_per_node: int

class RoleResourceKeys(TypedDict, total=False):
    num_npus: int | None
    first_npu: int | None

class RolloutResourceKeys(TypedDict, total=False):
    num_npus: int | None
    first: bool

class IntegratedModeKeys(TypedDict, total=False):
    ref_model_load_path: str | None

class RolloutCorrectionKeys(TypedDict, total=False):
    level: Literal["off", "token", "sequence"] | None
    beyond: Literal["truncate", "mask"]
    max_weight: float
    min_weight: float
    reject_below: float | None
    reject_above: float | None

class TrackingKeys(TypedDict, total=False):
    trackers: Sequence[str]
    project: str
    experiment: str | None
    offline: bool
    sample_rows: int
    sample_interval: int
    timeout_seconds: int
    prometheus_port: int | None

class RLKeys(TypedDict, total=False):
    use_integrated_worker: bool
    allocation_mode: str | None
    blocking: bool
    device: Literal["auto", "npu", "gpu", "cpu"]
    actor_resource: ActorResourceKeys
    critic_resource: RoleResourceKeys
    reference_resource: RoleResourceKeys
    reward_resource: RoleResourceKeys
    teacher_resource: RoleResourceKeys
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
    share_prompts: bool | None
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
    policy_loss_options: Mapping[str, object] | None
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
    verifier_parallel: int | None
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

class SpeculativeKeys(TypedDict, total=False):
    method: Literal["ngram", "draft_model"] | None
    model: str | None
    num_speculative_tokens: int
    prompt_lookup_max: int
    prompt_lookup_min: int

class TruncationKeys(TypedDict, total=False):
    top_p: float
    top_k: int
    min_p: float

class SamplingKeys(TruncationKeys, total=False):
    temperature: float
    max_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]

class GenerateKeys(TypedDict, total=False):
    backend: str
    servers: Sequence[str]
    servers_file: str | None
    server_token_file: str | None
    router: Literal["vllm-router"] | None
    servers_are_remote: bool
    infer_tensor_parallel_size: int
    infer_pipeline_parallel_size: int
    infer_expert_parallel_size: int
    dtype: Literal["bfloat16", "float32"]
    quantization: Literal["int8"] | None
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    kv_cache_mib: int | None
    enforce_eager: bool | None
    cudagraph_mode: Literal["FULL_DECODE_ONLY", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"] | None
    cudagraph_capture_sizes: Sequence[int] | None
    batch_invariant: bool
    kv_block_tokens: int | None
    enable_prefix_caching: bool
    speculative_config: SpeculativeKeys
    trust_remote_code: bool
    offload_train_optimizer: bool
    offload_train_grad: bool
    offload_train_param: bool
    rank_map: Literal["best", "default"]
    reshard_bucket_mib: int
    reshard_timeout_seconds: int
    verify_weights: Literal["off", "first", "always"]
    sampling_config: SamplingKeys

class TrainSetKeys(TypedDict, total=False):
    name: str
    data_path: str | Sequence[str]
    weight: float
    data_source: str | None

class SourceRewardKeys(TypedDict, total=False):
    data_source: str
    verifier_function: Sequence[str]
    verifier_weight: Sequence[float]
    verifier_kwargs: Sequence[Mapping[str, object]]

class EvalSetKeys(TruncationKeys, total=False):
    name: str
    data_path: str | Sequence[str]
    samples: int
    temperature: float
    max_tokens: int | None
    data_source: str | None

class ImageKeys(TypedDict, total=False):
    folder: str
    max_per_prompt: int
    max_pixels: int
    max_file_pixels: int
    cache_mib: int
    features_mib: int

class DataKeys(TypedDict, total=False):
    train_sets: Sequence[TrainSetKeys]
    source_column: str | None
    rewards: Sequence[SourceRewardKeys]
    order: Literal["shuffled", "as_is", "by_column"] | None
    order_column: str | None
    order_descending: bool
    order_stages: int | None
    pass_rate_column: str | None
    pass_rate_low: float
    pass_rate_high: float
    held_out_fraction: float
    held_out_seed: int
    test_overlap_policy: Literal["error", "drop", "allow"]
    eval_sets: Sequence[EvalSetKeys]
    best_by: str | None
    images: ImageKeys

class NamedEnvironmentKeys(TypedDict, total=False):
    name: str
    environment: str
    arguments: Mapping[str, object] | None

class EnvironmentKeys(TypedDict, total=False):
    environment: str | None
    arguments: Mapping[str, object] | None
    environments: Sequence[NamedEnvironmentKeys]
    tools: Sequence[str]
    agent: str | None
    interpreter: str | None
    agent_timeout_seconds: int
    tool_format: Literal["tagged_json", "plain_json"]
    history: Literal["kept", "rendered"]
    sandbox: Literal["auto", "bubblewrap", "unshare"]
    reward_weight: float
    max_turns: int
    max_turn_tokens: int | None
    max_result_tokens: int
    lock_step: bool
    processes: int
    memory_mib: int
    start_timeout_seconds: int
    call_timeout_seconds: int
    max_failed_fraction: float

class SpoolKeys(TypedDict, total=False):
    folder: str | None
    job: Literal["train", "rollout"] | None
    publish_every: int
    prompts_per_record: int | None
    max_records_mib: int | None
    lease_seconds: int
    poll_seconds: float
    waits: bool

class SFTKeys(TypedDict, total=False):
    response_column: str | None
    turns: Literal["all", "last"]
    answer_coef: float
    epochs: int | None

class PreferenceKeys(TypedDict, total=False):
    loss: Literal[
        "sigmoid", "sigmoid_norm", "ipo", "hinge", "kto", "bradley_terry", "score", "steps"
    ]
    beta: float
    label_smoothing: float
    reference_free: bool
    reference_file: str | None
    desirable_weight: float
    undesirable_weight: float
    center_rewards_coefficient: float
    system_column: str | None
    chosen_column: str
    rejected_column: str
    completion_column: str
    label_column: str
    margin_column: str | None
    score_column: str
    steps_column: str
    step_labels_column: str
    step_separator: str

class ProfilerKeys(TypedDict, total=False):
    trace_steps: int
    profile: bool
    profile_step_start: int
    profile_step_end: int
    profile_ranks: Sequence[int] | None
    stage: (
        Sequence[
            Literal[
                "actor_generate",
                "actor_compute_log_prob",
                "reference_compute_log_prob",
                "teacher_compute_log_prob",
                "critic_compute_values",
                "actor_update",
                "critic_update",
            ]
        ]
        | None
    )
    profile_save_path: str | None
    profile_with_cpu: bool
    profile_with_npu: bool
    profile_with_memory: bool
    profile_record_shapes: bool
    profile_with_module: bool
    profile_level: Literal["level_none", "level0", "level1", "level2"]
    profile_export_type: Literal["text", "db"]
    profile_analysis: bool

class SectionArguments(TypedDict, total=False):
    megatron_training: MegatronTrainingKeys
    actor_config: ActorKeys
    ref_config: RefKeys
    critic_config: CriticKeys | None
    reward_config: RewardKeys | None
    teacher_config: TeacherKeys | None
    rl_config: RLKeys
    generate_config: GenerateKeys
    data_config: DataKeys
    environment_config: EnvironmentKeys | None
    spool_config: SpoolKeys
    sft_config: SFTKeys | None
    preference_config: PreferenceKeys | None
    profiler_config: ProfilerKeys
