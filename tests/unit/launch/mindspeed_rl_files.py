"""A small run in MindSpeed-RL's words, and what becomes of it with changes."""

from typing import Any

from mindrl.config.mindspeed_rl import Import, import_run
from mindrl.config.mindspeed_rl_file import their_run
from mindrl.config.mindspeed_rl_mapped import Mapped
from mindrl.launch.config_text import nested

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
