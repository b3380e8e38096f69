"""The releases of MindSpeed-RL, and which keys came and went with them. Data, and one question."""

from collections.abc import Iterable, Mapping

from mindrl.migrate.keys import names

RELEASES = ("2.0", "2.1", "2.2", "2.3", "later than 2.3")
"""In order; the last stands for the commit 05a90d7 of April 2026."""

NEWEST = len(RELEASES) - 1

_CAME_WITH: Mapping[str, str] = {
    "2.1": """
        ai_framework coc_fused_kernel coc_mode coc_parallel_num context_parallel_algo mm_model
        noop_layers num_layers_per_virtual_pipeline_stage swap_optimizer use_ascend_coc
        rl_config: is_multimodal log_max_throughput max_packing_token_size td_status_log
        use_dynamic_bsz use_remove_padding
        generate_config: enable_expert_parallel enforce_eager torchair_graph
    """,
    "2.2": """
        attention_bias cp_attention_mask_type dpo_loss_type gemm_gradient_accumulation_fusion
        moe_aux_loss_coeff ref_model ref_model_iter refer_model_iter reset_attention_mask
        use_cp_send_recv_overlap use_fused_ring_attention_update
        rl_config: actor_dynamic_max_batch_size actor_image_embeds_dispatch_size
        actor_max_packing_token_size async_engine clip_higher_enable clip_ratio_high clip_ratio_low
        cliprange_value colocate_actor_and_vit critic_resource.num_npus critic_update_dispatch_size
        critic_value_dispatch_size dynamic_max_batch_size dynamic_sampling_dispatch_size
        filter_groups_enable filter_groups_max_batches filter_groups_metric
        filter_groups_train_batch_size kl_dispatch_size overlong_buffer overlong_buffer_enable
        overlong_buffer_penalty_factor partial_rollout_max_split ref_dynamic_max_batch_size
        ref_max_packing_token_size require_max_age_all_finished reuse_image_embeds
        rollout_max_tokens token_level_loss update_dynamic_max_batch_size
        update_max_packing_token_size use_dp_batch_balance use_kl_in_reward
        vit_forward_micro_batch_size vit_resource.num_npus zmq_communication
        generate_config: ascend_scheduler_config_enabled eplb_token_collects eplb_token_save_path
        expert_map_path limit_mm_image_per_prompt limit_mm_video_per_prompt
        msprobe_config: critic_train_dump token_range_end token_range_start
    """,
    "2.3": """
        attention_mask_type beta_fast beta_slow moe_ffn_hidden_size moe_router_group_topk
        moe_router_num_groups moe_router_topk_scaling_factor multi_latent_attention
        no_pad_to_seq_lengths npu_deterministic qk_head_dim qk_pos_emb_head_dim variable_seq_length
    """,
    "later than 2.3": """
        lora_alpha lora_ckpt_filter lora_fusion lora_r lora_target_modules transformer_impl
        rl_config: data_strategy hccl_buffersize max_parallel_calls max_tool_calls
        max_tool_response_length max_total_response_length multi_turn_enable share_backbone
        swanlab_exp_name swanlab_mode swanlab_project swanlab_save_dir tool_config_path
        tool_parser_format tool_response_truncate_side transfer_queue_data_shard_num
        transfer_queue_data_shard_port_base use_swanlab
    """,
}
_WENT_WITH: Mapping[str, str] = {
    "2.0": """
        rl_config: experience_count actor_micro_batch_size ref_micro_batch_size rew_micro_batch_size
        adv_micro_batch_size update_micro_batch_size shuffle_minibatch
        generate_config: gen_micro_batch_size
    """,
    "2.1": "rl_config: enable_sharding_validate td_status_log",
    "2.2": """
        cp_attention_mask_type moe_intermediate_size multi_head_latent_attention n_group
        qk_nope_head_dim qk_rope_head_dim ref_model_iter rope_scaling_beta_fast
        rope_scaling_beta_slow routed_scaling_factor topk_group use_deter_comp
    """,
    "2.3": "variable_seq_length",
}
"""The last release that had a key."""
LEFT_OVER = names(_WENT_WITH["2.0"])
"""Keys that files of a release have and its classes do not: MindSpeed-RL warns and goes on."""
_FIRST, _LAST = (
    {key: RELEASES.index(release) for release, keys in table.items() for key in names(keys)}
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
