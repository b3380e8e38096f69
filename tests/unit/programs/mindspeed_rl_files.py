"""A small MindSpeed-RL run, and its import with changed keys."""

from typing import Any

from mindrl.config.text import nested
from mindrl.migrate.file import their_run
from mindrl.migrate.mapped import Import, Mapped
from mindrl.migrate.run import import_run

BASE: dict[str, Any] = {
    "megatron_training.model": "dense",
    "megatron_training.tokenizer_name_or_path": "models/hf",
    "megatron_training.stage": "ray_grpo",
    "megatron_training.global_batch_size": 32,
    "megatron_training.seq_length": 4096,
    "megatron_training.train_iters": 10,
    "megatron_training.data_path": "data/prefix",
    "actor_config.tensor_model_parallel_size": 2,
    "actor_config.micro_batch_size": 1,
    "actor_config.load": "ckpt",
    "rl_config.mini_batch_size": 32,
    "rl_config.n_samples_per_prompt": 8,
    "rl_config.max_prompt_length": 2048,
    "rl_config.verifier_function": ["math_17k_acc"],
    "rl_config.verifier_weight": [1.0],
    "rl_config.actor_resource.num_npus": 16,
    "generate_config.infer_tensor_parallel_size": 2,
    "generate_config.max_model_len": 4096,
    "generate_config.max_num_batched_tokens": 4096,
    "generate_config.sampling_config.max_tokens": 2048,
}
DENSE = {"num_layers": 28, "num_attention_heads": 28}
EXPERTS = {"num_layers": 94, "num_attention_heads": 64, "num_experts": 128}
PPO = {"megatron_training.stage": "ray_ppo", "rl_config.adv_estimator": "gae"}
DAPO = {"megatron_training.stage": "ray_dapo"}


def imported(changes: dict[str, Any], model: dict[str, Any] = DENSE) -> Import:
    values = {key: value for key, value in (BASE | changes).items() if value != "absent"}
    return import_run(their_run(nested(values), {"dense": model}))


def of(result: Import, key: str) -> Mapped:
    """Return the one entry of a key that says the most of it."""
    return next(each for each in result.mapped if each.key == key)


QWEN25_7B: dict[str, Any] = {
    "num_layers": 28,
    "hidden_size": 3584,
    "ffn_hidden_size": 18944,
    "num_attention_heads": 28,
    "group_query_attention": True,
    "num_query_groups": 4,
    "max_position_embeddings": 32768,
    "padded_vocab_size": 152064,
    "untie_embeddings_and_output_weights": True,
    "add_qkv_bias": True,
}
LLAMA_32_1B: dict[str, Any] = {
    "num_layers": 16,
    "hidden_size": 2048,
    "ffn_hidden_size": 8192,
    "num_attention_heads": 32,
    "group_query_attention": True,
    "num_query_groups": 8,
    "max_position_embeddings": 8192,
    "padded_vocab_size": 128256,
}
QWEN3_30B: dict[str, Any] = {
    "num_layers": 48,
    "hidden_size": 2048,
    "ffn_hidden_size": 8192,
    "num_attention_heads": 32,
    "kv_channels": 128,
    "group_query_attention": True,
    "num_query_groups": 4,
    "qk_layernorm": True,
    "max_position_embeddings": 40960,
    "padded_vocab_size": 151936,
    "untie_embeddings_and_output_weights": True,
    "num_experts": 128,
    "moe_router_topk": 8,
    "moe_ffn_hidden_size": 768,
    "norm_topk_prob": True,
}
DEEPSEEK_V3: dict[str, Any] = {
    "num_layers": 61,
    "hidden_size": 7168,
    "ffn_hidden_size": 18432,
    "num_attention_heads": 128,
    "max_position_embeddings": 163840,
    "padded_vocab_size": 129280,
    "untie_embeddings_and_output_weights": True,
    "multi_latent_attention": True,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
    "num_experts": 256,
    "moe_router_topk": 8,
    "moe_ffn_hidden_size": 2048,
    "first_k_dense_replace": 3,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "moe_router_score_function": "sigmoid",
    "moe_router_num_groups": 8,
    "moe_router_group_topk": 4,
    "moe_router_topk_scaling_factor": 2.5,
}
"""Sizes of published models, in the words of 2.3."""
OLD_NAMES = {
    "multi_latent_attention": "multi_head_latent_attention",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "moe_ffn_hidden_size": "moe_intermediate_size",
    "moe_router_num_groups": "n_group",
    "moe_router_group_topk": "topk_group",
    "moe_router_topk_scaling_factor": "routed_scaling_factor",
}


def with_names_of_2_2(model: dict[str, Any]) -> dict[str, Any]:
    """Say the same in the words of 2.1 and 2.2."""
    return {OLD_NAMES.get(key, key): value for key, value in model.items()}
