"""The keys of a verl run that change no result in mindrl, and verl's defaults of others. Data only.

As verl's configuration files, of January 2026 (commit b178a3c).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from mindrl.migrate.verl_keys import ACTOR, REF, ROLLOUT

_MODEL, _MODELS = "actor_rollout_ref.model", (ACTOR, REF, "critic")
_OF_TRANSFORMER = (
    *("apply_rope_fusion", "bias_activation_fusion", "bias_dropout_fusion", "moe_permute_fusion"),
    *("masked_softmax_fusion", "gradient_accumulation_fusion", "persist_layer_norm"),
    *("deallocate_pipeline_outputs", "moe_enable_deepep", "moe_token_dispatcher_type"),
    *("moe_shared_expert_overlap", "attention_backend", "use_flash_attn", "use_fused_rmsnorm"),
    *("use_fused_swiglu", "use_fused_rotary_pos_emb"),
)
IGNORED: Mapping[str, Sequence[str]] = {
    "used only by verl; mindrl writes to the run folder": (
        *("trainer.default_local_dir", "trainer.default_hdfs_dir", "trainer.log_val_generations"),
    ),
    "a mindrl checkpoint has all models": ("trainer.max_critic_ckpt_to_keep",),
    "mindrl trains with Megatron and offload_* on; it does not affect results": (
        *(f"{role}.fsdp_config." for role in (ACTOR, REF, "critic.model")),
        *(f"{role}.strategy" for role in _MODELS),
        *(f"{role}.use_torch_compile" for role in (ACTOR, REF)),
        *(
            f"{role}.megatron.{part}_offload"
            for role in _MODELS
            for part in ("param", "grad", "optimizer")
        ),
        "model_engine",
    ),
    "mindrl loads a folder in Hugging Face format": (
        *(
            f"{role}.megatron.{key}"
            for role in _MODELS
            for key in ("use_mbridge", "vanilla_mbridge", "use_dist_checkpointing")
        ),
        *(f"{role}.megatron.dist_checkpointing_path" for role in _MODELS),
        *(f"{role}.megatron.dist_checkpointing_prefix" for role in _MODELS),
    ),
    "a conversation in several turns is configured anew, in environment_config": (
        f"{ROLLOUT}.multi_turn.",
    ),
    "a reward model is configured anew, in reward_config": (
        *(f"reward_model.{part}." for part in ("model", "rollout", "megatron")),
        *(f"reward_model.{name}" for name in ("strategy", "micro_batch_size_per_gpu")),
    ),
    "it affects only speed or memory": (
        *(f"{role}.log_prob_use_dynamic_bsz" for role in (REF, ROLLOUT)),
        *(f"{role}.entropy_checkpointing" for role in (ACTOR, REF)),
        *(f"{role}.entropy_from_logits_with_chunking" for role in (ACTOR, REF)),
        *(f"{place}.use_fused_kernels" for place in (ACTOR, _MODEL)),
        *(f"{_MODEL}.{name}" for name in ("fused_kernel_options.", "tiled_mlp.", "use_liger")),
        *(f"{place}.enable_activation_offload" for place in (_MODEL, "critic.model")),
        *("critic.use_dynamic_bsz", "critic.model.use_remove_padding", "critic.model.tiled_mlp."),
        *(f"critic.{name}_max_token_len_per_gpu" for name in ("ppo", "forward")),
        *(
            f"{role}.megatron.override_transformer_config.{name}"
            for role in _MODELS
            for name in _OF_TRANSFORMER
        ),
        *(
            f"{role}.optim.override_optimizer_config.{name}"
            for role in (ACTOR, "critic")
            for name in (
                *("optimizer_cpu_offload", "optimizer_offload_fraction", "offload_fraction"),
                *("overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer"),
            )
        ),
        *(f"{ROLLOUT}.{name}" for name in ("checkpoint_engine.", "multi_stage_wake_up")),
        *(f"{ROLLOUT}.{name}" for name in ("disable_log_stats", "agent.num_workers")),
        *("data.dataloader_num_workers", "data.filter_overlong_prompts_workers"),
        *("data.val_batch_size", "actor_rollout_ref.nccl_timeout", "ray_kwargs."),
        *("trainer.use_legacy_worker_impl", "trainer.ray_wait_register_center_timeout"),
    ),
    "mindrl does the same without a key": (
        *("actor_rollout_ref.hybrid_engine", "trainer.balance_batch"),
        *(f"{ROLLOUT}.calculate_log_probs", f"{ROLLOUT}.enable_rollout_routing_replay"),
        *(f"{ROLLOUT}.enable_chunked_prefill", f"{ROLLOUT}.free_cache_engine"),
        *(f"{ROLLOUT}.load_format", f"{ROLLOUT}.mode", "data.return_raw_chat"),
        "reward_model.reward_kwargs.overlong_buffer_cfg.log",
    ),
}
"""By reason, the keys or key prefixes that change no result."""
COPIES: Mapping[str, tuple[str, Any]] = {
    f"{ACTOR}.use_remove_padding": (f"{_MODEL}.use_remove_padding", True),
    **{f"{role}.rollout_n": (f"{ROLLOUT}.n", 1) for role in _MODELS},
    f"{ROLLOUT}.prompt_length": ("data.max_prompt_length", 512),
    f"{ROLLOUT}.response_length": ("data.max_response_length", 512),
    "reward_model.reward_kwargs.max_resp_len": ("data.max_response_length", 512),
    "critic.ppo_mini_batch_size": (f"{ACTOR}.ppo_mini_batch_size", 256),
    "critic.ppo_epochs": (f"{ACTOR}.ppo_epochs", 1),
    "critic.shuffle": (f"{ACTOR}.shuffle", False),
    "critic.loss_agg_mode": (f"{ACTOR}.loss_agg_mode", "token-mean"),
    f"{ROLLOUT}.prometheus.served_model_name": (f"{_MODEL}.path", None),
    "critic.model.tokenizer_path": (f"{_MODEL}.path", None),
    "critic.model.trust_remote_code": (f"{_MODEL}.trust_remote_code", False),
}
"""Keys that change nothing as long as they have the value of another key, and its default."""
_DEFAULTS = """
actor_rollout_ref.actor:
  {calculate_entropy: false, use_prefix_grouper: false, calculate_sum_pi_squared: false,
   sum_pi_squared_checkpointing: false}
actor_rollout_ref.actor actor_rollout_ref.ref critic:
  {data_loader_seed: 42, load_weight: true, router_replay.mode: disabled}
actor_rollout_ref.actor.checkpoint critic.checkpoint:
  {save_contents: [model, optimizer, extra], load_contents: [model, optimizer, extra],
   async_save: false}
actor_rollout_ref.actor.megatron actor_rollout_ref.ref.megatron critic.megatron:
  {sequence_parallel: true, use_distributed_optimizer: true, seed: 42, use_remove_padding: true,
   dtype: bfloat16, override_transformer_config.recompute_modules: [core_attn]}
actor_rollout_ref.actor.megatron critic.megatron:
  {forward_only: false}
actor_rollout_ref.actor.optim critic.optim:
  {optimizer_impl: torch.optim, total_training_steps: -1, num_cycles: 0.5, lr_warmup_init: 0.0,
   weight_decay_incr_style: constant, lr_wsd_decay_style: exponential,
   use_checkpoint_opt_param_scheduler: false}
actor_rollout_ref.model critic.model:
  {override_config.moe_config.freeze_moe_router: false}
actor_rollout_ref.ref.megatron:
  {forward_only: true}
actor_rollout_ref.rollout:
  {ignore_eos: false, data_parallel_size: 1, logprobs_mode: processed_logprobs,
   scheduling_policy: fcfs, over_sample_rate: 0, skip_rollout: false,
   skip_dump_dir: /tmp/rollout_dump, skip_tokenizer_init: true,
   agent.default_agent_loop: single_turn_agent, trace.token2text: false, prometheus.enable: false,
   prometheus.port: 9090,
   prometheus.file: /tmp/ray/session_latest/metrics/prometheus/prometheus.yml,
   layer_name_map.qkv_layer_name: qkv, layer_name_map.gate_proj_layer_name: gate_up}
actor_rollout_ref.rollout.mtp actor_rollout_ref.model.mtp:
  {enable: false, enable_train: false, enable_rollout: false, detach_encoder: false,
   mtp_loss_scaling_factor: 0.1, speculative_algorithm: EAGLE, method: mtp,
   speculative_num_steps: 2, speculative_eagle_topk: 2, speculative_num_draft_tokens: 4,
   num_speculative_tokens: 1}
algorithm:
  {rollout_correction.bypass_mode: false, rollout_correction.loss_type: ppo_clip,
   rollout_correction.rollout_is_batch_normalize: false,
   rollout_correction.rollout_is_threshold: 2.0, use_pf_ppo: false, pf_ppo.reweight_method: pow,
   pf_ppo.weight_pow: 2.0}
critic critic.model reward_model:
  {use_shm: false, nccl_timeout: 600, load_weight: true}
critic.model:
  {lora_alpha: 16, target_modules: all-linear}
critic.model.lora:
  {type: lora, alpha: 32, dropout: 0.0, exclude_modules: [], target_modules: [linear_qkv,
   linear_proj, linear_fc1, linear_fc2], dropout_position: pre, lora_A_init_method: xavier,
   lora_B_init_method: zero, a2a_experimental: false, freeze_vision_model: true,
   freeze_vision_projection: true, freeze_language_model: true}
custom_reward_function:
  {name: compute_score}
data:
  {use_shm: false, return_raw_input_ids: false, return_full_prompt: false, val_max_samples: -1,
   validation_shuffle: false, trust_remote_code: false, image_key: images, video_key: videos,
   image_patch_size: 14, return_multi_modal_inputs: true}
reward_manager:
  {source: register, name: naive, module.name: custom_reward_manager}
reward_model:
  {enable_resource_pool: false, n_gpus_per_node: 8, nnodes: 0, use_dynamic_bsz: false,
   forward_max_token_len_per_gpu: 32768, reward_loop_source: register,
   launch_reward_fn_async: false, sandbox_fusion.max_concurrent: 64,
   sandbox_fusion.memory_limit_mb: 1024, ulysses_sequence_parallel_size: 1, use_reward_loop: true,
   num_workers: 1}
trainer:
  {esi_redundant_time: 0, val_only: false, del_local_ckpt_after_load: false}
transfer_queue:
  {enable: false}
"""
"""Sections, and defaults that each of them has."""
UNCHANGED: Mapping[str, Any] = {
    f"{section}.{name}": value
    for sections, values in yaml.safe_load(_DEFAULTS).items()
    for section in sections.split()
    for name, value in values.items()
}
"""verl's defaults of keys that mindrl does not have: a composed file lists them."""
