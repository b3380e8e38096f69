"""The keys of a MindSpeed-RL file, by what becomes of them here. Data only.

Read from the configuration classes of its releases. `role` stands for a model: its file,
`megatron_training`, `actor_config` and `critic_config` have the same keys.
"""

from collections.abc import Mapping
from typing import Any

from mindrl.migrate.releases import LEFT_OVER


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SAME_OF_RUN = (
    "train_iters",
    "no_shuffle",
    "seed",
    "npu_deterministic",
    "bf16",
    "use_distributed_optimizer",
    "save_interval",
    "tokenizer_name_or_path",
)
"""Keys of a role that are `megatron_training.<key>` here."""

SAME_OF_ROLE = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "micro_batch_size",
    "lr",
    "min_lr",
    "lr_warmup_fraction",
    "weight_decay",
    "clip_grad",
    "adam_beta1",
    "adam_beta2",
)
"""Keys of a role that are `<role>_config.<key>` here."""

SAME = tuple(
    [
        f"rl_config.{key}"
        for key in (
            "blocking",
            "actor_resource.num_npus",
            "n_samples_per_prompt",
            "epochs",
            "shuffle_mini_batch",
            "actor_forward_micro_batch_size",
            "ref_forward_micro_batch_size",
            "use_dynamic_bsz",
            "guarantee_order",
            "max_prompt_length",
            "adv_estimator",
            "gamma",
            "lam",
            "cliprange_value",
            "entropy_coeff",
            "use_tensorboard",
        )
    ]
    + [
        f"generate_config.{key}"
        for key in (
            "infer_pipeline_parallel_size",
            "dtype",
            "gpu_memory_utilization",
            "enforce_eager",
            "enable_prefix_caching",
            "offload_train_grad",
            "offload_train_param",
            "sampling_config.temperature",
            "sampling_config.max_tokens",
            "sampling_config.top_p",
            "sampling_config.top_k",
            "sampling_config.min_p",
        )
    ]
)
"""Keys with the same section, name and meaning here."""

DEFAULTS: Mapping[str, Any] = {
    "role.adam_beta2": 0.999,
    "role.lr_decay_style": "linear",
    "role.use_distributed_optimizer": False,
    "rl_config.n_samples_per_prompt": 1,
    "rl_config.use_tensorboard": False,
    "generate_config.max_num_seqs": 1,
    "generate_config.offload_train_grad": False,
    "generate_config.offload_train_param": False,
    "generate_config.sampling_config.temperature": 0.2,
    "generate_config.sampling_config.top_k": 50,
}
"""Its defaults where ours differ: a key that the file leaves out keeps its meaning."""

_CONFIG_JSON = "the model's config.json says it"
_ENGINE = "the engine and the kernels of this version decide; no result depends on it"
_PADDING = "packed sequences need no such switch: use_remove_padding is enough"
_FLOW = "the driver deals the batches here; there is no such queue to size"
_LORA = "only with lora_target_modules"
_TURNS = "only with multi_turn_enable"
_IMAGES = "there are no images in a run here"
_PREFERENCES = "belongs to DPO, which this file does not run"
_NO_EVALUATION = "MindSpeed-RL has no evaluation either; ours is rl_config.test_freq"
_TRACKERS = "no such tracker here: metrics go to metrics.jsonl and, where asked, to TensorBoard"
_OVERLAP = "speed only; no result depends on it"
_DATA = "belongs to the preparation of .bin/.idx data"

IGNORED_OF_ROLE: Mapping[str, tuple[str, ...]] = {
    _CONFIG_JSON: _words(
        "spec use_rotary_position_embeddings rope_scaling_type rope_scaling_factor low_freq_factor "
        "high_freq_factor original_max_position_embeddings max_position_embeddings beta_fast "
        "beta_slow rope_scaling_mscale rope_scaling_mscale_all_dim "
        "rope_scaling_original_max_position_embeddings num_layers hidden_size ffn_hidden_size "
        "num_attention_heads kv_channels group_query_attention num_query_groups "
        "untie_embeddings_and_output_weights multi_latent_attention qk_pos_emb_head_dim "
        "qk_head_dim q_lora_rank kv_lora_rank v_head_dim qk_layernorm first_k_dense_replace "
        "moe_layer_freq moe_router_topk num_experts n_shared_experts moe_ffn_hidden_size "
        "moe_router_num_groups moe_router_group_topk moe_router_topk_scaling_factor "
        "norm_topk_prob moe_router_score_function make_vocab_size_divisible_by padded_vocab_size "
        "add_qkv_bias disable_bias_linear position_embedding_type rotary_base normalization "
        "norm_epsilon swiglu attention_bias vocab_extra_ids moe_intermediate_size "
        "multi_head_latent_attention qk_nope_head_dim qk_rope_head_dim n_group topk_group "
        "routed_scaling_factor rope_scaling_beta_fast rope_scaling_beta_slow"
    ),
    _ENGINE: _words(
        "use_mcore_models use_flash_attn use_fused_rmsnorm use_fused_swiglu shape_order "
        "no_bias_dropout_fusion moe_permutation_async_comm "
        "use_fused_moe_token_permute_and_unpermute moe_token_dispatcher_type "
        "no_masked_softmax_fusion attention_softmax_in_fp32 no_gradient_accumulation_fusion "
        "use_fused_rotary_pos_emb gemm_gradient_accumulation_fusion transformer_impl ai_framework "
        "attention_mask_type cp_attention_mask_type accumulate_allreduce_grads_in_fp32 "
        "initial_loss_scale do_sample use_kv_cache init_method_std use_fused_ring_attention_update"
    ),
    _OVERLAP: _words(
        "moe_alltoall_overlap_comm overlap_grad_reduce overlap_param_gather ddp_bucket_size "
        "use_cp_send_recv_overlap use_ascend_coc coc_mode coc_parallel_num coc_fused_kernel "
        "num_workers use_tp_pp_dp_mapping"
    ),
    "memory only; `plan.py memory` says whether the run fits without it": _words(
        "reuse_fp32_param swap_attention recompute_activation_function"
    ),
    _PADDING: _words(
        "no_pad_to_seq_lengths variable_seq_lengths variable_seq_length reset_position_ids "
        "reset_attention_mask pad_to_multiple_of"
    ),
    "the platform chooses it: hccl on NPUs": ("distributed_backend",),
    "the bias that chooses experts stays as the model has it, where Megatron may move it": (
        "moe_router_enable_expert_bias",
    ),
    "the balancing is decided by moe_router_load_balancing_type": ("seq_aux",),
    _DATA: _words(
        "is_instruction_dataset dataloader_type full_shuffle_instruction_dataset prompt_type_path "
        "no_shared_storage tokenizer_type tokenizer_not_use_fast tokenizer_padding_side"
    ),
    "the reference answer is in the column megatron_training.answer_column": (
        "dataset_additional_keys",
    ),
    _PREFERENCES: _words(
        "is_pairwise_dataset dpo_loss_type ref_model refer_model_iter ref_model_iter algorithm"
    ),
    _NO_EVALUATION: _words("eval_iters eval_interval skip_train"),
    "every step is logged": _words("log_interval log_throughput"),
    "a run starts at step 0 from the weights alone, and writes only weights": _words(
        "finetune no_load_rng no_save_optim no_save_rng load_checkpoint_loosely "
        "pretrained_checkpoint enable_high_availability"
    ),
    "a metric that is no number ends the run": ("no_check_for_nan_in_loss_and_grad",),
    _LORA: _words("lora_ckpt_filter lora_r lora_alpha lora_fusion"),
}
"""Reason -> keys of a role that change nothing."""

IGNORED: Mapping[str, tuple[str, ...]] = {
    "it never had an effect in MindSpeed-RL: documented, read by no code": _words(
        "rl_config.num_samples_per_step rl_config.advantage_whiten rl_config.verifier_parallel "
        "rl_config.verifier_timeout rl_config.tp_split_expert rl_config.beta"
    ),
    _FLOW: _words(
        "rl_config.num_cpus_for_local_task rl_config.num_cpus_for_placement_group "
        "rl_config.actor_rollout_dispatch_size rl_config.actor_logprob_dispatch_size "
        "rl_config.ref_dispatch_size rl_config.reward_dispatch_size "
        "rl_config.dynamic_sampling_dispatch_size rl_config.adv_dispatch_size "
        "rl_config.actor_update_dispatch_size rl_config.critic_update_dispatch_size "
        "rl_config.critic_value_dispatch_size rl_config.kl_dispatch_size rl_config.data_strategy "
        "rl_config.transfer_queue_data_shard_num rl_config.transfer_queue_data_shard_port_base "
        "rl_config.zmq_communication rl_config.td_status_log"
    ),
    "a self-test of their resharding": ("rl_config.enable_sharding_validate",),
    "environment variables are set where the run is started": _words(
        "rl_config.runtime_env_path rl_config.hccl_buffersize"
    ),
    "use_dynamic_bsz deals sequences by their work; no gradient depends on it": _words(
        "rl_config.use_dp_batch_balance rl_config.dynamic_max_batch_size "
        "rl_config.ref_dynamic_max_batch_size rl_config.actor_dynamic_max_batch_size "
        "rl_config.update_dynamic_max_batch_size"
    ),
    _TRACKERS: _words(
        "rl_config.use_wandb rl_config.wandb_project rl_config.wandb_exp_name "
        "rl_config.wandb_save_dir rl_config.use_swanlab rl_config.swanlab_mode "
        "rl_config.swanlab_project rl_config.swanlab_exp_name rl_config.swanlab_save_dir"
    ),
    "throughput is a metric of every step": ("rl_config.log_max_throughput",),
    _IMAGES: _words(
        "rl_config.vit_resource.num_npus rl_config.vit_forward_micro_batch_size "
        "rl_config.actor_image_embeds_dispatch_size rl_config.reuse_image_embeds "
        "rl_config.colocate_actor_and_vit generate_config.limit_mm_image_per_prompt "
        "generate_config.limit_mm_video_per_prompt"
    ),
    _ENGINE: _words(
        "rl_config.async_engine generate_config.num_scheduler_steps generate_config.torchair_graph "
        "generate_config.ascend_scheduler_config_enabled generate_config.eplb_token_collects "
        "generate_config.eplb_token_save_path generate_config.expert_map_path"
    ),
    "it follows from the other sizes": ("generate_config.data_parallel_size",),
    "megatron_training.tokenizer_name_or_path is the tokenizer of all": (
        "generate_config.tokenizer_name_or_path",
    ),
    "no family that is trained here needs code of its own; set it where yours does": (
        "generate_config.trust_remote_code",
    ),
    "the log-prob of each sampled token is always kept, and text is made for rewards alone": _words(
        "generate_config.sampling_config.logprobs generate_config.sampling_config.detokenize"
    ),
    "megatron_training.seed seeds the sampling too": ("generate_config.sampling_config.seed",),
}
"""Reason -> dotted keys that change nothing."""

RULED_OF_ROLE: Mapping[str, str] = {
    "load": "",
    "save": "the model is exported into the run folder; actor_config.save names another place",
    "data_path": "",
    "global_batch_size": "",
    "seq_length": "",
    "sequence_parallel": "",
    "split": "all rows train, as here",
    "prompt_type": "",
    "stage": "",
    "optimizer": "AdamW, as here",
    "no_load_optim": "a run starts from the weights alone, as here",
    "attention_dropout": "none, as here",
    "hidden_dropout": "none, as here",
    "expert_model_parallel_size": "the model has no experts",
    "moe_tp_extend_ep": "the model has no experts",
    "moe_grouped_gemm": "the model has no experts",
    "moe_aux_loss_coeff": "the model has no experts",
    "moe_router_load_balancing_type": "the model has no experts",
    "context_parallel_size": "",
    "context_parallel_algo": "context_parallel_size is 1",
    "num_layers_per_virtual_pipeline_stage": "pipeline_model_parallel_size is 1",
    "num_layer_list": "pipeline_model_parallel_size is 1",
    "noop_layers": "empty layers are not needed: stages may be uneven here",
    "lr_decay_style": "",
    "recompute_granularity": "",
    "recompute_method": "only with recompute_granularity: full",
    "recompute_num_layers": "only with recompute_granularity: full",
    "swap_optimizer": "off, as here",
    "use_deter_comp": "npu_deterministic has the last word",
    "lora_target_modules": "",
    "mm_model": "",
}
"""Keys of a role that rules look at, with the reason where no rule has anything to say."""

RULED: Mapping[str, str] = {
    "rl_config.use_integrated_worker": "",
    "rl_config.rule_reward": "the verifiers are the rewards, as here",
    "rl_config.reference_resource.num_npus": "",
    "rl_config.reward_resource.num_npus": "",
    "rl_config.critic_resource.num_npus": "there is no critic without adv_estimator: gae",
    "rl_config.integrated_mode_config.ref_model_load_path": "no reference is loaded",
    "rl_config.mini_batch_size": "",
    "rl_config.use_remove_padding": "",
    "rl_config.max_packing_token_size": "only with use_dynamic_bsz",
    "rl_config.ref_max_packing_token_size": "only with use_dynamic_bsz",
    "rl_config.actor_max_packing_token_size": "only with use_dynamic_bsz",
    "rl_config.update_max_packing_token_size": "only with use_dynamic_bsz",
    "rl_config.clip_ratio": "clip_ratio_low and clip_ratio_high take its place",
    "rl_config.clip_higher_enable": "only DAPO's loss reads it",
    "rl_config.clip_ratio_low": "only DAPO's loss reads it, with clip_higher_enable",
    "rl_config.clip_ratio_high": "only DAPO's loss reads it, with clip_higher_enable",
    "rl_config.token_level_loss": "only DAPO's loss reads it there; tokens weigh equally",
    "rl_config.overlong_buffer_enable": "off, as here",
    "rl_config.overlong_buffer": "only with overlong_buffer_enable",
    "rl_config.overlong_buffer_penalty_factor": "only with overlong_buffer_enable",
    "rl_config.rollout_max_tokens": "sampling_config.max_tokens says it",
    "rl_config.filter_groups_enable": "off, as here",
    "rl_config.filter_groups_metric": "only with filter_groups_enable",
    "rl_config.filter_groups_max_batches": "only with filter_groups_enable",
    "rl_config.filter_groups_train_batch_size": "only with filter_groups_enable",
    "rl_config.kl_penalty": "no KL enters the loss or the reward",
    "rl_config.kl_ctrl_type": "the coefficient is constant, as here",
    "rl_config.kl_horizon": "only with kl_ctrl_type: adaptive",
    "rl_config.kl_target": "only with kl_ctrl_type: adaptive",
    "rl_config.init_kl_coef": "",
    "rl_config.use_kl_in_reward": "off, as here",
    "rl_config.verifier_function": "",
    "rl_config.verifier_weight": "",
    "rl_config.is_multimodal": "off, as here",
    "rl_config.partial_rollout_max_split": "off, as here",
    "rl_config.require_max_age_all_finished": "only with partial_rollout_max_split",
    "rl_config.multi_turn_enable": "off, as here",
    "rl_config.tool_config_path": _TURNS,
    "rl_config.max_tool_calls": _TURNS,
    "rl_config.max_parallel_calls": _TURNS,
    "rl_config.max_total_response_length": _TURNS,
    "rl_config.max_tool_response_length": _TURNS,
    "rl_config.tool_response_truncate_side": _TURNS,
    "rl_config.tool_parser_format": _TURNS,
    "rl_config.share_backbone": "off, as here",
    "generate_config.infer_tensor_parallel_size": "",
    "generate_config.infer_expert_parallel_size": "",
    "generate_config.enable_expert_parallel": "the other sizes say where the experts lie",
    "generate_config.max_model_len": "",
    "generate_config.max_num_batched_tokens": "",
    "generate_config.max_num_seqs": "",
    "generate_config.offload_train_optimizer": "",
}
"""Dotted keys that rules look at, with the reason where no rule has anything to say."""

WATCHED: Mapping[str, tuple[str, ...]] = {
    "profiler_config.integrated": _words(
        "profile mstx stage profile_save_path profile_export_type profile_level "
        "profile_with_memory profile_record_shapes profile_with_module profile_with_cpu "
        "profile_with_npu profile_step_start profile_step_end profile_analysis profile_ranks"
    ),
    "msprobe_config": _words(
        "msprobe dump_path key_data_dump configurations_dump actor_train_dump actor_infer_dump "
        "reference_dump critic_train_dump step_start step_end token_range_start token_range_end"
    ),
}
"""Sections of tools that watch a run, with their keys."""

WATCHED_REASON = "no such tool here; timings, memory and log-prob gaps are metrics of every step"

OF_ROLE: frozenset[str] = frozenset(
    [*SAME_OF_RUN, *SAME_OF_ROLE, *RULED_OF_ROLE]
    + [key for keys in IGNORED_OF_ROLE.values() for key in keys]
)
"""All keys of a role."""

DOTTED: frozenset[str] = frozenset(
    [*SAME, *RULED, *LEFT_OVER]
    + [key for keys in IGNORED.values() for key in keys]
    + [f"{section}.{key}" for section, keys in WATCHED.items() for key in keys]
)
"""All keys of the other sections."""
