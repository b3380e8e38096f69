"""The keys of a verl run that need no rule, and verl's defaults. Data only.

Based on verl's configuration files of January 2026 (commit b178a3c) and its DAPO recipe.
"""

from collections.abc import Mapping, Sequence
from typing import Any

SECTIONS = frozenset({"actor_rollout_ref", "algorithm", "data", "trainer", "critic"})
"""Any of these sections identifies a verl file."""
ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
SPLITS = (
    f"{ACTOR}.ulysses_sequence_parallel_size",
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
    f"{ACTOR}.megatron.context_parallel_size",
)
"""Devices that share a sequence: the engine of a run reads one of these keys."""
LAYOUT = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size"),
    *("expert_tensor_parallel_size", "virtual_pipeline_model_parallel_size"),
)
"""Keys of a model's layout with Megatron, of verl and of mindrl."""
_TRANSFORMER = (
    *("recompute_granularity", "recompute_method", "recompute_num_layers"),
    *("moe_grouped_gemm", "moe_aux_loss_coeff"),
)
_SAMPLING = "generate_config.sampling_config"
NAMES: Mapping[str, str] = {
    "actor_rollout_ref.model.path": "actor_config.load",
    "actor_rollout_ref.model.trust_remote_code": "generate_config.trust_remote_code",
    f"{ACTOR}.ppo_mini_batch_size": "rl_config.mini_batch_size",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": "actor_config.micro_batch_size",
    f"{ACTOR}.ppo_epochs": "rl_config.epochs",
    f"{ACTOR}.shuffle": "rl_config.shuffle_mini_batch",
    f"{ACTOR}.use_dynamic_bsz": "rl_config.use_dynamic_bsz",
    f"{ACTOR}.clip_ratio_low": "rl_config.clip_ratio_low",
    f"{ACTOR}.clip_ratio_high": "rl_config.clip_ratio_high",
    f"{ACTOR}.clip_ratio_c": "rl_config.dual_clip_ratio",
    f"{ACTOR}.tau_pos": "rl_config.sapo_tau_positive",
    f"{ACTOR}.tau_neg": "rl_config.sapo_tau_negative",
    f"{ACTOR}.policy_loss.clip_cov_ratio": "rl_config.clip_cov_ratio",
    f"{ACTOR}.policy_loss.clip_cov_lb": "rl_config.clip_cov_lb",
    f"{ACTOR}.policy_loss.clip_cov_ub": "rl_config.clip_cov_ub",
    f"{ACTOR}.policy_loss.kl_cov_ratio": "rl_config.kl_cov_ratio",
    f"{ACTOR}.policy_loss.ppo_kl_coef": "rl_config.kl_cov_coef",
    f"{ACTOR}.entropy_coeff": "rl_config.entropy_coeff",
    f"{ACTOR}.optim.lr": "actor_config.lr",
    f"{ACTOR}.optim.lr_warmup_steps_ratio": "actor_config.lr_warmup_fraction",
    f"{ACTOR}.optim.weight_decay": "actor_config.weight_decay",
    f"{ACTOR}.optim.min_lr": "actor_config.min_lr",
    f"{ACTOR}.grad_clip": "actor_config.clip_grad",
    f"{ACTOR}.ulysses_sequence_parallel_size": "actor_config.context_parallel_size",
    f"{REF}.log_prob_micro_batch_size_per_gpu": "rl_config.ref_forward_micro_batch_size",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": "rl_config.actor_forward_micro_batch_size",
    f"{ROLLOUT}.n": "rl_config.n_samples_per_prompt",
    f"{ROLLOUT}.tensor_model_parallel_size": "generate_config.infer_tensor_parallel_size",
    f"{ROLLOUT}.pipeline_model_parallel_size": "generate_config.infer_pipeline_parallel_size",
    f"{ROLLOUT}.expert_parallel_size": "generate_config.infer_expert_parallel_size",
    **{f"{ROLLOUT}.{key}": f"{_SAMPLING}.{key}" for key in ("temperature", "top_p", "top_k")},
    **{
        f"{ROLLOUT}.{key}": f"generate_config.{key}"
        for key in (
            *("gpu_memory_utilization", "enforce_eager", "enable_prefix_caching"),
            *("max_num_batched_tokens", "max_num_seqs"),
        )
    },
    **{f"{ACTOR}.megatron.{key}": f"actor_config.{key}" for key in LAYOUT},
    **{
        f"{ACTOR}.megatron.override_transformer_config.{key}": f"actor_config.{key}"
        for key in _TRANSFORMER
    },
    f"{ACTOR}.fsdp_config.full_determinism": "megatron_training.deterministic",
    f"{ACTOR}.freeze_vision_tower": "actor_config.freeze_vision_tower",
    "algorithm.gamma": "rl_config.gamma",
    "algorithm.lam": "rl_config.lam",
    "algorithm.filter_groups.enable": "rl_config.filter_groups_enable",
    "data.train_batch_size": "megatron_training.global_batch_size",
    "data.max_prompt_length": "rl_config.max_prompt_length",
    "data.max_response_length": f"{_SAMPLING}.max_tokens",
    "data.prompt_key": "megatron_training.prompt_column",
    "data.reward_fn_key": "data_config.source_column",
    "data.seed": "megatron_training.seed",
    "trainer.total_training_steps": "megatron_training.train_iters",
    "trainer.n_gpus_per_node": "rl_config.actor_resource.npus_per_node",
    "trainer.max_actor_ckpt_to_keep": "megatron_training.keep_last",
    **{
        f"reward_model.{place}.{theirs}": f"rl_config.overlong_buffer{ours}"
        for place in ("overlong_buffer", "reward_kwargs.overlong_buffer_cfg")
        for theirs, ours in (
            ("enable", "_enable"),
            ("len", ""),
            ("penalty_factor", "_penalty_factor"),
        )
    },
}
"""Keys with the same meaning under another name."""
CRITIC_NAMES: Mapping[str, str] = {
    "critic.model.path": "critic_config.load",
    "critic.optim.lr": "critic_config.lr",
    "critic.optim.weight_decay": "critic_config.weight_decay",
    "critic.optim.lr_warmup_steps_ratio": "critic_config.lr_warmup_fraction",
    "critic.optim.min_lr": "critic_config.min_lr",
    "critic.grad_clip": "critic_config.clip_grad",
    "critic.ppo_micro_batch_size_per_gpu": "critic_config.micro_batch_size",
    "critic.cliprange_value": "rl_config.cliprange_value",
    "critic.ulysses_sequence_parallel_size": "critic_config.context_parallel_size",
    **{f"critic.megatron.{key}": f"critic_config.{key}" for key in LAYOUT},
    **{
        f"critic.megatron.override_transformer_config.{key}": f"critic_config.{key}"
        for key in _TRANSFORMER
    },
}
"""The same, for runs with `algorithm.adv_estimator: gae`."""
DEFAULTS: Mapping[str, Any] = {
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.clip_ratio_c": 3.0,
    "critic.optim.lr": 1e-5,
    f"{ROLLOUT}.n": 1,
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ROLLOUT}.max_num_batched_tokens": 8192,
    f"{ROLLOUT}.max_num_seqs": 256,
    "algorithm.lam": 1.0,
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.prompt_key": "prompt",
    "trainer.n_gpus_per_node": 8,
}
"""verl defaults that differ from mindrl's; they are written out for omitted keys."""
OMITTED = "not in the file; verl's default"
"""Note of such an entry."""
_TURNS = "mindrl has tools in environment_config; if dropped, a response is one turn"
REFUSED: Mapping[str, tuple[Any, str]] = {
    f"{ROLLOUT}.multi_turn.enable": (False, _TURNS),
    f"{ROLLOUT}.multi_turn.tool_config_path": (None, _TURNS),
    f"{ROLLOUT}.multi_turn.interaction_config_path": (None, _TURNS),
    "reward_model.enable": (
        False,
        "mindrl configures a reward model in the section reward_config: add it",
    ),
}
"""By key of a part that is not imported, the value without it, and the note for other values."""
_OPTIMIZER = "mindrl has only AdamW"
_FSDP = (f"{ACTOR}.fsdp_config", "critic.model.fsdp_config")
FIXED: Mapping[str, tuple[Sequence[Any], str]] = {
    "data.truncation": (
        ("error",),
        "rl_config.overlong_prompt_policy ends the run, or drops prompts",
    ),
    "trainer.val_before_train": ((True,), "mindrl also evaluates before the first step"),
    f"{ROLLOUT}.do_sample": ((True,), "mindrl samples all responses that it trains on"),
    **{f"{role}.optim.optimizer": (("AdamW", "adam"), _OPTIMIZER) for role in (ACTOR, "critic")},
    **{
        f"{place}.model_dtype": (("fp32", "float32"), "mindrl's optimizer has float32 weights")
        for place in _FSDP
    },
    **{
        f"{place}.dtype": (
            ("bfloat16", "bf16"),
            "mindrl trains in bfloat16, or in float32 with megatron_training.bf16=false",
        )
        for place in (*_FSDP, f"{ACTOR}.megatron", "critic.megatron")
    },
    "critic.model.fsdp_config.ulysses_sequence_parallel_size": (
        (1,),
        "set critic_config.context_parallel_size",
    ),
}
"""By key, the spellings of the only value that mindrl has, and a note for the other ones."""
