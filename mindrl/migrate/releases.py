"""The releases of MindSpeed-RL, and which keys came and went with them. Data, and one question."""

from collections.abc import Iterable, Mapping

RELEASES = ("2.0", "2.1", "2.2", "2.3", "later than 2.3")
"""In order; the last stands for the commit 05a90d7 of April 2026."""

NEWEST = len(RELEASES) - 1

LEFT_OVER: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "rl_config.experience_count",
            "rl_config.actor_micro_batch_size",
            "rl_config.ref_micro_batch_size",
            "rl_config.rew_micro_batch_size",
            "rl_config.adv_micro_batch_size",
            "rl_config.update_micro_batch_size",
            "generate_config.gen_micro_batch_size",
        ),
        "in files of 2.0, read by none of its code: micro_batch_size and the keys of "
        "*_forward_micro_batch_size are what it reads",
    ),
    "rl_config.shuffle_minibatch": "in files of 2.0, read by none of its code: shuffle_mini_batch "
    "is what it reads",
}
"""Keys that files of a release have and its classes do not: MindSpeed-RL warns and goes on."""

_CAME_WITH: Mapping[str, str] = {
    "2.1": """
        rl_config.is_multimodal rl_config.log_max_throughput rl_config.max_packing_token_size
        rl_config.td_status_log rl_config.use_dynamic_bsz rl_config.use_remove_padding
        generate_config.enable_expert_parallel generate_config.enforce_eager
        generate_config.torchair_graph
        role.ai_framework role.coc_fused_kernel role.coc_mode role.coc_parallel_num
        role.context_parallel_algo role.mm_model role.noop_layers
        role.num_layers_per_virtual_pipeline_stage role.swap_optimizer role.use_ascend_coc
    """,
    "2.2": """
        rl_config.actor_dynamic_max_batch_size rl_config.actor_image_embeds_dispatch_size
        rl_config.actor_max_packing_token_size rl_config.async_engine rl_config.clip_higher_enable
        rl_config.clip_ratio_high rl_config.clip_ratio_low rl_config.cliprange_value
        rl_config.colocate_actor_and_vit rl_config.critic_resource.num_npus
        rl_config.critic_update_dispatch_size rl_config.critic_value_dispatch_size
        rl_config.dynamic_max_batch_size rl_config.dynamic_sampling_dispatch_size
        rl_config.filter_groups_enable rl_config.filter_groups_max_batches
        rl_config.filter_groups_metric rl_config.filter_groups_train_batch_size
        rl_config.kl_dispatch_size rl_config.overlong_buffer rl_config.overlong_buffer_enable
        rl_config.overlong_buffer_penalty_factor rl_config.partial_rollout_max_split
        rl_config.ref_dynamic_max_batch_size rl_config.ref_max_packing_token_size
        rl_config.require_max_age_all_finished rl_config.reuse_image_embeds
        rl_config.rollout_max_tokens rl_config.token_level_loss
        rl_config.update_dynamic_max_batch_size rl_config.update_max_packing_token_size
        rl_config.use_dp_batch_balance rl_config.use_kl_in_reward
        rl_config.vit_forward_micro_batch_size rl_config.vit_resource.num_npus
        rl_config.zmq_communication
        generate_config.ascend_scheduler_config_enabled generate_config.eplb_token_collects
        generate_config.eplb_token_save_path generate_config.expert_map_path
        generate_config.limit_mm_image_per_prompt generate_config.limit_mm_video_per_prompt
        role.attention_bias role.cp_attention_mask_type role.dpo_loss_type
        role.gemm_gradient_accumulation_fusion role.moe_aux_loss_coeff role.ref_model
        role.ref_model_iter role.refer_model_iter role.reset_attention_mask
        role.use_cp_send_recv_overlap role.use_fused_ring_attention_update
        msprobe_config.critic_train_dump msprobe_config.token_range_end
        msprobe_config.token_range_start
    """,
    "2.3": """
        role.attention_mask_type role.beta_fast role.beta_slow role.moe_ffn_hidden_size
        role.moe_router_group_topk role.moe_router_num_groups role.moe_router_topk_scaling_factor
        role.multi_latent_attention role.no_pad_to_seq_lengths role.npu_deterministic
        role.qk_head_dim role.qk_pos_emb_head_dim role.variable_seq_length
    """,
    "later than 2.3": """
        rl_config.data_strategy rl_config.hccl_buffersize rl_config.max_parallel_calls
        rl_config.max_tool_calls rl_config.max_tool_response_length
        rl_config.max_total_response_length rl_config.multi_turn_enable rl_config.share_backbone
        rl_config.swanlab_exp_name rl_config.swanlab_mode rl_config.swanlab_project
        rl_config.swanlab_save_dir rl_config.tool_config_path rl_config.tool_parser_format
        rl_config.tool_response_truncate_side rl_config.transfer_queue_data_shard_num
        rl_config.transfer_queue_data_shard_port_base rl_config.use_swanlab
        role.lora_alpha role.lora_ckpt_filter role.lora_fusion role.lora_r
        role.lora_target_modules role.transformer_impl
    """,
}
_WENT_WITH: Mapping[str, str] = {
    "2.0": " ".join(LEFT_OVER),
    "2.1": "rl_config.enable_sharding_validate rl_config.td_status_log",
    "2.2": """
        role.cp_attention_mask_type role.moe_intermediate_size role.multi_head_latent_attention
        role.n_group role.qk_nope_head_dim role.qk_rope_head_dim role.ref_model_iter
        role.rope_scaling_beta_fast role.rope_scaling_beta_slow role.routed_scaling_factor
        role.topk_group role.use_deter_comp
    """,
    "2.3": "role.variable_seq_length",
}
"""The last release that had a key."""
_FIRST, _LAST = (
    {key: RELEASES.index(release) for release, keys in table.items() for key in keys.split()}
    for table in (_CAME_WITH, _WENT_WITH)
)


def releases_of(key: str) -> range:
    """Return which of `RELEASES` have a key.

    Args:
        key: One that is known, such as `rl_config.clip_ratio`; `role.key` for one of a model.
    """
    return range(_FIRST.get(key, 0), _LAST.get(key, NEWEST) + 1)


def looks_like(keys: Iterable[str]) -> str:
    """Say which releases have all of some keys: `2.0`, `2.1 to 2.2`, `2.3 or later`."""
    known = list(keys)
    newest = max(known, key=lambda key: releases_of(key).start, default="")
    oldest = min(known, key=lambda key: releases_of(key).stop, default="")
    first, last = releases_of(newest).start, releases_of(oldest).stop - 1
    if first > last:
        return (
            f"of no one release: {oldest.partition('.')[2]} went with {RELEASES[last]}, "
            f"{newest.partition('.')[2]} came with {RELEASES[first]}"
        )
    if first == last:
        return RELEASES[first]
    return (
        f"{RELEASES[first]} or later"
        if last == NEWEST
        else f"{RELEASES[first]} to {RELEASES[last]}"
    )
