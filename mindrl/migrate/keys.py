"""The keys of a MindSpeed-RL file, grouped by their import rule. Data only.

Taken from the configuration classes of its releases. `role` stands for a model: its file,
`megatron_training`, `actor_config` and `critic_config` have the same keys.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

RELEASES = ("2.0", "2.1", "2.2", "2.3", "later than 2.3")
"""In order; the last stands for commit 05a90d7 of April 2026 and is `new` in the tables."""
NEWEST = len(RELEASES) - 1


def words(text: str) -> tuple[str, ...]:
    """Split a text at whitespace."""
    return tuple(text.split())


def _keys(text: str) -> dict[str, range]:
    """Parse keys and the releases (indices in `RELEASES`) that have each.

    A word with a colon sets the section of the words that follow; the first section is `role`.
    `key@2.1` was added in 2.1, `key@-2.2` was last in 2.2, `key@2.1-2.2` is both.
    """
    section, keys = "role", {}
    number = {name: index for index, name in enumerate(RELEASES)} | {"": 0, "new": NEWEST}
    for word in words(text):
        if word.endswith(":"):
            section = word[:-1]
            continue
        name, _, releases = word.partition("@")
        first, _, last = releases.partition("-")
        keys[f"{section}.{name}"] = range(number[first], number[last or "new"] + 1)
    return keys


SAME_OF_RUN = _keys("""
    train_iters no_shuffle seed npu_deterministic@2.3 bf16 use_distributed_optimizer
    tokenizer_name_or_path overlap_grad_reduce use_fused_rmsnorm use_fused_swiglu
    use_fused_rotary_pos_emb
""")
"""Keys of a role that become `megatron_training.<key>`."""
SAME_OF_ROLE = _keys("""
    tensor_model_parallel_size pipeline_model_parallel_size micro_batch_size lr min_lr
    weight_decay clip_grad adam_beta1 adam_beta2
""")
"""Keys of a role that become `<role>_config.<key>`."""
SAME = _keys("""
    rl_config: blocking actor_resource.num_npus n_samples_per_prompt epochs shuffle_mini_batch
    actor_forward_micro_batch_size ref_forward_micro_batch_size use_dynamic_bsz@2.1 guarantee_order
    max_prompt_length adv_estimator gamma lam cliprange_value@2.2 entropy_coeff use_tensorboard
    generate_config: infer_pipeline_parallel_size dtype gpu_memory_utilization enforce_eager@2.1
    enable_prefix_caching offload_train_grad offload_train_param sampling_config.temperature
    sampling_config.max_tokens sampling_config.top_p sampling_config.top_k sampling_config.min_p
""")
"""Keys with the same section, name and meaning in mindrl."""
PROFILER = _keys("""
    profiler_config: integrated.profile integrated.profile_save_path integrated.profile_export_type
    integrated.profile_level integrated.profile_with_memory integrated.profile_record_shapes
    integrated.profile_with_module integrated.profile_with_cpu integrated.profile_with_npu
    integrated.profile_step_start integrated.profile_step_end integrated.profile_analysis
""")
"""Keys that mindrl has without `integrated`."""
_RULED = _keys("""
    load save_interval no_save_optim data_path global_batch_size seq_length sequence_parallel
    prompt_type stage ddp_bucket_size overlap_param_gather
    context_parallel_size lr_decay_style lr_warmup_fraction recompute_granularity
    lora_target_modules@new mm_model@2.1
    rl_config: use_integrated_worker reference_resource.num_npus reward_resource.num_npus
    mini_batch_size use_remove_padding@2.1 init_kl_coef verifier_function verifier_weight
    generate_config: infer_tensor_parallel_size infer_expert_parallel_size max_model_len
    max_num_batched_tokens max_num_seqs offload_train_optimizer
    profiler_config: integrated.stage integrated.profile_ranks
""")
"""Keys that the rules handle; if no rule returns an entry, the meaning is the same in mindrl."""

DEFAULTS: Mapping[str, Any] = {
    "role.adam_beta2": 0.999,
    "role.lr_decay_style": "linear",
    "role.moe_aux_loss_coeff": 0.001,
    "role.use_distributed_optimizer": False,
    "rl_config.n_samples_per_prompt": 1,
    "rl_config.use_tensorboard": False,
    "rl_config.clip_ratio_low": 0.1,
    "rl_config.clip_ratio_high": 0.1,
    "rl_config.init_kl_coef": 0.01,
    "generate_config.infer_tensor_parallel_size": 8,
    "generate_config.max_num_seqs": 1,
    "generate_config.offload_train_grad": False,
    "generate_config.offload_train_optimizer": False,
    "generate_config.offload_train_param": False,
    "generate_config.sampling_config.temperature": 0.2,
    "generate_config.sampling_config.top_k": 50,
}
"""MindSpeed-RL defaults that differ from mindrl's; they are written out if the file omits the
key."""

_REASONS = """
the model is exported to the run folder; actor_config.save sets another folder = save
all rows are used for training, the same in mindrl = split
AdamW, the same in mindrl = optimizer
a run starts at step 1 and loads only weights, the same in mindrl; to load more from a mindrl
    run folder set megatron_training.resume and the mindrl key of this name = finetune no_load_optim
none, the same in mindrl = attention_dropout hidden_dropout
the model has no experts = expert_model_parallel_size moe_tp_extend_ep moe_grouped_gemm
    moe_aux_loss_coeff@2.2 moe_router_load_balancing_type
no effect if context_parallel_size is 1 = context_parallel_algo@2.1
no effect if pipeline_model_parallel_size is 1 =
    num_layers_per_virtual_pipeline_stage@2.1 num_layer_list
empty layers are not needed: in mindrl stages may be uneven = noop_layers@2.1
no effect without recompute_granularity: full = recompute_method recompute_num_layers
off, the same in mindrl = swap_optimizer@2.1
    rl_config: overlong_buffer_enable@2.2 filter_groups_enable@2.2 use_kl_in_reward@2.2
    is_multimodal@2.1 partial_rollout_max_split@2.2 multi_turn_enable@new share_backbone@new
    use_wandb use_swanlab@new
overridden by npu_deterministic = use_deter_comp@-2.2
the verifiers compute the rewards, the same in mindrl = rl_config: rule_reward
only adv_estimator: gae trains a critic = rl_config: critic_resource.num_npus@2.2
no reference model is loaded = rl_config: integrated_mode_config.ref_model_load_path
no effect without use_dynamic_bsz = rl_config: max_packing_token_size@2.1
    ref_max_packing_token_size@2.2 actor_max_packing_token_size@2.2
    update_max_packing_token_size@2.2
replaced by clip_ratio_low and clip_ratio_high = rl_config: clip_ratio
only DAPO's loss reads it, and only with clip_higher_enable = rl_config: clip_ratio_low@2.2
    clip_ratio_high@2.2
only DAPO's loss reads it = rl_config: token_level_loss@2.2 clip_higher_enable@2.2
no effect without overlong_buffer_enable = rl_config: overlong_buffer@2.2
    overlong_buffer_penalty_factor@2.2
replaced by sampling_config.max_tokens = rl_config: rollout_max_tokens@2.2
no effect without filter_groups_enable = rl_config: filter_groups_metric@2.2
    filter_groups_max_batches@2.2
    filter_groups_train_batch_size@2.2
the run has no KL term = rl_config: kl_penalty
the coefficient is constant, the same in mindrl = rl_config: kl_ctrl_type
no effect without kl_ctrl_type: adaptive = rl_config: kl_horizon kl_target
no effect without partial_rollout_max_split = rl_config: require_max_age_all_finished@2.2
no effect without multi_turn_enable = rl_config: tool_config_path@new max_tool_calls@new
    max_parallel_calls@new max_total_response_length@new max_tool_response_length@new
    tool_response_truncate_side@new tool_parser_format@new
derived from the other sizes = generate_config: enable_expert_parallel@2.1
read from the model's config.json = spec use_rotary_position_embeddings rope_scaling_type
    rope_scaling_factor low_freq_factor high_freq_factor original_max_position_embeddings
    max_position_embeddings beta_fast@2.3 beta_slow@2.3 rope_scaling_mscale
    rope_scaling_mscale_all_dim rope_scaling_original_max_position_embeddings num_layers hidden_size
    ffn_hidden_size num_attention_heads kv_channels group_query_attention num_query_groups
    untie_embeddings_and_output_weights multi_latent_attention@2.3 qk_pos_emb_head_dim@2.3
    qk_head_dim@2.3 q_lora_rank kv_lora_rank v_head_dim qk_layernorm first_k_dense_replace
    moe_layer_freq moe_router_topk num_experts n_shared_experts moe_ffn_hidden_size@2.3
    moe_router_num_groups@2.3 moe_router_group_topk@2.3 moe_router_topk_scaling_factor@2.3
    norm_topk_prob moe_router_score_function make_vocab_size_divisible_by padded_vocab_size
    add_qkv_bias disable_bias_linear position_embedding_type rotary_base normalization norm_epsilon
    swiglu attention_bias@2.2 vocab_extra_ids moe_intermediate_size@-2.2
    multi_head_latent_attention@-2.2 qk_nope_head_dim@-2.2 qk_rope_head_dim@-2.2 n_group@-2.2
    topk_group@-2.2 routed_scaling_factor@-2.2 rope_scaling_beta_fast@-2.2
    rope_scaling_beta_slow@-2.2
mindrl's engine and kernels decide this; it does not affect results = use_mcore_models
    use_flash_attn shape_order no_bias_dropout_fusion
    moe_permutation_async_comm use_fused_moe_token_permute_and_unpermute moe_token_dispatcher_type
    no_masked_softmax_fusion attention_softmax_in_fp32 no_gradient_accumulation_fusion
    gemm_gradient_accumulation_fusion@2.2 transformer_impl@new
    ai_framework@2.1 attention_mask_type@2.3 cp_attention_mask_type@2.2-2.2
    accumulate_allreduce_grads_in_fp32 initial_loss_scale do_sample use_kv_cache init_method_std
    use_fused_ring_attention_update@2.2
    rl_config: async_engine@2.2
    generate_config: num_scheduler_steps torchair_graph@2.1 ascend_scheduler_config_enabled@2.2
    eplb_token_collects@2.2 eplb_token_save_path@2.2 expert_map_path@2.2
affects only speed = moe_alltoall_overlap_comm use_cp_send_recv_overlap@2.2 use_ascend_coc@2.1
    coc_mode@2.1 coc_parallel_num@2.1 coc_fused_kernel@2.1 num_workers use_tp_pp_dp_mapping
affects only memory; check with `mindrl plan memory` that the run fits without it = reuse_fp32_param
    swap_attention recompute_activation_function
use_remove_padding alone turns packing on = no_pad_to_seq_lengths@2.3
    variable_seq_lengths variable_seq_length@2.3-2.3 reset_position_ids reset_attention_mask@2.2
    pad_to_multiple_of
mindrl chooses it: hccl on NPUs = distributed_backend
mindrl keeps the router's expert bias of the loaded model; Megatron may update it =
    moe_router_enable_expert_bias
moe_router_load_balancing_type selects the balancing loss = seq_aux
used only to prepare .bin/.idx data = is_instruction_dataset dataloader_type
    full_shuffle_instruction_dataset prompt_type_path no_shared_storage tokenizer_type
    tokenizer_not_use_fast tokenizer_padding_side
the reference answer is in the column megatron_training.answer_column = dataset_additional_keys
used only by DPO = is_pairwise_dataset dpo_loss_type@2.2 ref_model@2.2
    refer_model_iter@2.2 ref_model_iter@2.2-2.2 algorithm
MindSpeed-RL does not evaluate; mindrl does with rl_config.test_freq = eval_iters eval_interval
    skip_train
every step is logged = log_interval log_throughput
random numbers are derived from seed and step; checkpoints contain the state of the others =
    no_load_rng no_save_rng
a missing or additional tensor is always an error in mindrl = load_checkpoint_loosely
mindrl loads weights only from actor_config.load = pretrained_checkpoint
rl_config.max_restarts restarts a run from its newest checkpoint if a worker is lost =
    enable_high_availability
megatron_training.on_nonfinite handles NaNs = no_check_for_nan_in_loss_and_grad
no effect without lora_target_modules = lora_ckpt_filter@new lora_r@new lora_alpha@new
    lora_fusion@new
no effect in MindSpeed-RL: documented, but not read by its code = rl_config:
    num_samples_per_step advantage_whiten verifier_parallel verifier_timeout tp_split_expert beta
mindrl's driver distributes the batches without such a queue = rl_config:
    num_cpus_for_local_task num_cpus_for_placement_group actor_rollout_dispatch_size
    actor_logprob_dispatch_size ref_dispatch_size reward_dispatch_size
    dynamic_sampling_dispatch_size@2.2 adv_dispatch_size actor_update_dispatch_size
    critic_update_dispatch_size@2.2 critic_value_dispatch_size@2.2 kl_dispatch_size@2.2
    data_strategy@new transfer_queue_data_shard_num@new transfer_queue_data_shard_port_base@new
    zmq_communication@2.2 td_status_log@2.1-2.1
a self-test of MindSpeed-RL's resharding = rl_config: enable_sharding_validate@-2.1
set environment variables in the shell that starts the run = rl_config: runtime_env_path
    hccl_buffersize@new
use_dynamic_bsz balances the work of the ranks without changing gradients = rl_config:
    use_dp_batch_balance@2.2 dynamic_max_batch_size@2.2 ref_dynamic_max_batch_size@2.2
    actor_dynamic_max_batch_size@2.2 update_dynamic_max_batch_size@2.2
no effect without use_wandb = rl_config: wandb_project wandb_exp_name
no effect without use_swanlab = rl_config: swanlab_mode@new swanlab_project@new swanlab_exp_name@new
mindrl's trackers write to the run folder = rl_config: wandb_save_dir swanlab_save_dir@new
throughput is a metric of every step = rl_config: log_max_throughput@2.1
mindrl has a vision tower where its model is = rl_config: vit_resource.num_npus@2.2
    vit_forward_micro_batch_size@2.2 actor_image_embeds_dispatch_size@2.2 reuse_image_embeds@2.2
    colocate_actor_and_vit@2.2
    generate_config: limit_mm_image_per_prompt@2.2 limit_mm_video_per_prompt@2.2
derived from the other sizes = generate_config: data_parallel_size
megatron_training.tokenizer_name_or_path sets the tokenizer of all models = generate_config:
    tokenizer_name_or_path
mindrl's model families need no code from the model folder; set it if your model does =
    generate_config: trust_remote_code
mindrl always returns the log-probs of sampled tokens, and decodes text only for rewards =
    generate_config: sampling_config.logprobs sampling_config.detokenize
megatron_training.seed also seeds the sampling = generate_config: sampling_config.seed
off; set profiler_config.trace_steps for a light timeline =
    profiler_config: integrated.mstx
not supported; log-prob gaps and non-finite numbers are metrics of every step =
    msprobe_config: msprobe dump_path key_data_dump configurations_dump actor_train_dump
    actor_infer_dump reference_dump critic_train_dump@2.2 step_start step_end token_range_start@2.2
    token_range_end@2.2
MindSpeed-RL 2.0 does not read it; it reads micro_batch_size and
    *_forward_micro_batch_size = rl_config: experience_count@-2.0
    actor_micro_batch_size@-2.0 ref_micro_batch_size@-2.0 rew_micro_batch_size@-2.0
    adv_micro_batch_size@-2.0 update_micro_batch_size@-2.0
    generate_config: gen_micro_batch_size@-2.0
an option that vllm-ascend has removed; it does not affect results =
    generate_config: chunked_prefill_for_mla@2.2-2.2
MindSpeed-RL 2.0 does not read it; it reads shuffle_mini_batch = rl_config:
    shuffle_minibatch@-2.0
"""
"""Lines `reason = keys`: keys without effect, or keys for which no rule returned an entry."""


def _reasons() -> Iterator[tuple[str, dict[str, range]]]:
    """Yield each reason with its keys; an indented line continues the line above."""
    for text in re.split(r"\n(?=\S)", _REASONS.strip()):
        reason, _, keys = " ".join(text.split()).partition(" = ")
        yield reason, _keys(keys)


REASONS: Mapping[str, str] = {key: reason for reason, keys in _reasons() for key in keys}
KEYS: Mapping[str, range] = {
    **SAME_OF_RUN,
    **SAME_OF_ROLE,
    **SAME,
    **PROFILER,
    **_RULED,
    **{key: releases for _, keys in _reasons() for key, releases in keys.items()},
}
"""All keys, and the releases (indices in `RELEASES`) that have each."""
OF_ROLE = frozenset(key.removeprefix("role.") for key in KEYS if key.startswith("role."))
"""All keys of a role."""
DOTTED = frozenset(key for key in KEYS if not key.startswith("role."))
"""All keys of the other sections."""
