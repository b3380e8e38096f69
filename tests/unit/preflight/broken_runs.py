"""Configurations that each break one rule, with the key and the value that correct them."""

from dataclasses import dataclass, field
from typing import Any

ACTOR, CRITIC, REF, RL = "actor_config", "critic_config", "ref_config", "rl_config"
GENERATE, TRAINING = "generate_config", "megatron_training"
DEVICES = "rl_config.actor_resource.num_npus"
TP, CP, PP = "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size"
VPP, LAYERS = "virtual_pipeline_model_parallel_size", "num_layer_list"
EP, ETP = "expert_model_parallel_size", "expert_tensor_parallel_size"
ROLLOUT_TP = f"{GENERATE}.infer_tensor_parallel_size"
ROLLOUT_EP = f"{GENERATE}.infer_expert_parallel_size"
RESPONSE = f"{GENERATE}.sampling_config.max_tokens"

Values = dict[str, Any]

GAE: Values = {f"{RL}.adv_estimator": "gae", f"{CRITIC}.lr": 1e-5}
REFERENCE: Values = {f"{RL}.init_kl_coef": 0.1}
DYNAMIC: Values = {f"{RL}.use_dynamic_bsz": True}
BATCH: Values = {f"{TRAINING}.global_batch_size": 16, f"{RL}.mini_batch_size": 16}

SIX: Values = {f"{RL}.n_samples_per_prompt": 6}
HEADS_12: Values = {"num_attention_heads": 12, "hidden_size": 48, "num_key_value_heads": 4}
MOE: Values = {
    "model_type": "qwen3_moe",
    "num_attention_heads": 4,
    "moe_intermediate_size": 12,
    "num_experts": 12,
    "num_experts_per_tok": 2,
}


@dataclass(frozen=True)
class Broken:
    """One rule broken."""

    field: str
    """That the finding names."""
    value: Any
    legal: Any
    """The nearest legal value that it names."""
    beside: Values = field(default_factory=dict)
    """Other keys, legal by themselves."""
    model: Values = field(default_factory=dict)
    """What the model's config.json has besides."""
    host_mib: int | None = None
    """Memory of the host."""


def on(devices: int, *more: Values) -> Values:
    """Return devices, a batch for all of them, and further keys."""
    return {DEVICES: devices, **BATCH} | {key: each[key] for each in more for key in each}


RUNS: dict[str, Broken] = {
    # Devices.
    "actor tp on 8 devices": Broken(f"{ACTOR}.{TP}", 3, 4, on(8)),
    "actor cp on 8 devices": Broken(f"{ACTOR}.{CP}", 3, 4, on(8)),
    "actor pp on 8 devices": Broken(f"{ACTOR}.{PP}", 3, 4, on(8), {"num_hidden_layers": 12}),
    "actor tp beside cp": Broken(f"{ACTOR}.{TP}", 4, 1, on(8, {f"{ACTOR}.{CP}": 4})),
    "actor tp beside pp": Broken(
        f"{ACTOR}.{TP}", 4, 2, on(8, {f"{ACTOR}.{PP}": 4}), {"num_hidden_layers": 4}
    ),
    "rollout tp on 8 devices": Broken(ROLLOUT_TP, 3, 4, on(8)),
    "rollout tp above the devices": Broken(ROLLOUT_TP, 16, 4, on(8)),
    "critic tp on 8 devices": Broken(f"{CRITIC}.{TP}", 3, 4, on(8, GAE)),
    "critic cp on 8 devices": Broken(f"{CRITIC}.{CP}", 3, 4, on(8, GAE)),
    "critic pp on 8 devices": Broken(f"{CRITIC}.{PP}", 6, 4, on(8, GAE), {"num_hidden_layers": 4}),
    "reference tp on 8 devices": Broken(f"{REF}.{TP}", 5, 4, on(8, REFERENCE)),
    "reference cp on 8 devices": Broken(f"{REF}.{CP}", 7, 4, on(8, REFERENCE)),
    "experts over a stage": Broken(
        f"{ACTOR}.{EP}", 8, 4, on(8, {f"{ACTOR}.{PP}": 2}), MOE | {"num_hidden_layers": 2}
    ),
    "experts over the devices": Broken(f"{ACTOR}.{EP}", 3, 4, on(8), MOE),
    "cut experts over the devices": Broken(f"{ACTOR}.{ETP}", 3, 4, on(8), MOE),
    "experts beside cut experts": Broken(f"{ACTOR}.{EP}", 4, 2, on(8, {f"{ACTOR}.{ETP}": 4}), MOE),
    "sequence parallelism without tensor parallelism": Broken(
        f"{TRAINING}.sequence_parallel", True, False, on(8)
    ),
    "rollout experts across replicas": Broken(ROLLOUT_EP, 2, 4, on(8, {ROLLOUT_TP: 4}), MOE),
    "a penalty over no tokens": Broken(
        "rl_config.overlong_buffer",
        0,
        3,
        on(8, {"rl_config.overlong_buffer_enable": True, "rl_config.overlong_buffer": 0}),
    ),
    "groups judged by a function that is none of the rewards": Broken(
        "rl_config.filter_groups_metric",
        "acc",
        "math_verify",
        on(8, {"rl_config.filter_groups_enable": True}),
    ),
    "partial rollout without seeds": Broken(
        "rl_config.reproducible_sampling",
        False,
        True,
        on(8, {"rl_config.partial_rollout": True}),
    ),
    # The model.
    "actor tp and attention heads": Broken(f"{ACTOR}.{TP}", 8, 4, on(8)),
    "rollout tp and attention heads": Broken(ROLLOUT_TP, 8, 4, on(8)),
    "critic tp and attention heads": Broken(f"{CRITIC}.{TP}", 8, 4, on(8, GAE)),
    "reference tp and attention heads": Broken(f"{REF}.{TP}", 8, 4, on(8, REFERENCE)),
    "actor tp and key-value heads": Broken(
        f"{ACTOR}.{TP}", 6, 4, on(12, SIX), HEADS_12 | {"intermediate_size": 96}
    ),
    "rollout tp and key-value heads": Broken(
        ROLLOUT_TP, 6, 4, on(12, SIX), HEADS_12 | {"intermediate_size": 96, "vocab_size": 192}
    ),
    "actor tp and the width": Broken(f"{ACTOR}.{TP}", 4, 2, on(4), {"intermediate_size": 62}),
    "rollout tp and the width": Broken(ROLLOUT_TP, 4, 2, on(4), {"intermediate_size": 62}),
    "actor cp and heads": Broken(f"{ACTOR}.{CP}", 8, 4, on(8)),
    "actor cp and heads of a rank": Broken(f"{ACTOR}.{CP}", 2, 1, on(8, {f"{ACTOR}.{TP}": 4})),
    "actor pp and layers": Broken(f"{ACTOR}.{PP}", 4, 2, on(4), {"num_hidden_layers": 6}),
    "critic pp and layers": Broken(f"{CRITIC}.{PP}", 4, 2, on(4, GAE), {"num_hidden_layers": 6}),
    "chunks and layers": Broken(
        f"{ACTOR}.{VPP}", 4, 3, on(2, {f"{ACTOR}.{PP}": 2}), {"num_hidden_layers": 6}
    ),
    "chunks without stages": Broken(f"{ACTOR}.{VPP}", 2, 1, on(2), {"num_hidden_layers": 2}),
    "a list of layers that is short": Broken(
        f"{ACTOR}.{LAYERS}", (1, 1), (2, 1), on(2, {f"{ACTOR}.{PP}": 2}), {"num_hidden_layers": 3}
    ),
    "a list of layers for other stages": Broken(
        f"{ACTOR}.{LAYERS}",
        (1, 1, 1),
        (2, 1),
        on(2, {f"{ACTOR}.{PP}": 2}),
        {"num_hidden_layers": 3},
    ),
    "experts and their number": Broken(f"{ACTOR}.{EP}", 8, 4, on(8), MOE),
    "cut experts and their width": Broken(f"{ACTOR}.{ETP}", 8, 4, on(8), MOE),
    "rollout tp and the experts' width": Broken(
        ROLLOUT_TP, 4, 2, on(4), MOE | {"moe_intermediate_size": 6}
    ),
    "expert parallelism of a dense model": Broken(f"{ACTOR}.{EP}", 2, 1, on(2)),
    "cut experts of a dense model": Broken(f"{ACTOR}.{ETP}", 2, 1, on(2)),
    "rollout experts of a dense model": Broken(ROLLOUT_EP, 2, 1, on(2, {ROLLOUT_TP: 2})),
    "a mixture without sequence parallelism": Broken(
        f"{TRAINING}.sequence_parallel", False, True, on(2, {f"{ACTOR}.{TP}": 2}), MOE
    ),
    "balance of a dense model": Broken(f"{ACTOR}.moe_aux_loss_coeff", 0.01, 0.0),
    "grouped experts of a dense model": Broken(
        f"{ACTOR}.moe_grouped_gemm", True, False, {f"{TRAINING}.bf16": True}
    ),
    "runs of recomputed layers": Broken(
        f"{ACTOR}.recompute_num_layers",
        4,
        3,
        {f"{ACTOR}.recompute_granularity": "full", f"{ACTOR}.recompute_method": "uniform"},
        {"num_hidden_layers": 6},
    ),
    "a training length beyond the model": Broken(f"{TRAINING}.seq_length", 129, 128),
    "a rollout length beyond the model": Broken(
        f"{GENERATE}.max_model_len", 129, 128, {f"{GENERATE}.max_num_batched_tokens": 2048}
    ),
    "a KV cache below one sequence": Broken(
        f"{GENERATE}.kv_cache_mib",
        1,
        3,
        {f"{GENERATE}.max_model_len": 8192, f"{GENERATE}.max_num_batched_tokens": 8192},
        {"max_position_embeddings": 8192, "num_hidden_layers": 8},
    ),
    # Batches.
    "mini-batch and batch": Broken(
        f"{RL}.mini_batch_size", 12, 16, {f"{TRAINING}.global_batch_size": 32}
    ),
    "mini-batch above the batch": Broken(
        f"{RL}.mini_batch_size", 64, 32, {f"{TRAINING}.global_batch_size": 32}
    ),
    "an update over the replicas": Broken(f"{RL}.mini_batch_size", 2, 4, on(8, SIX)),
    "a critic's update over its replicas": Broken(
        f"{RL}.mini_batch_size",
        2,
        4,
        on(8, GAE, {f"{RL}.n_samples_per_prompt": 2, f"{ACTOR}.{TP}": 4, f"{CRITIC}.{TP}": 1}),
    ),
    "a group of one": Broken(f"{RL}.n_samples_per_prompt", 1, 2),
    # Lengths and budgets.
    "training length": Broken(f"{TRAINING}.seq_length", 47, 48),
    "rollout length": Broken(f"{GENERATE}.max_model_len", 40, 48),
    "tokens of an engine step": Broken(
        f"{GENERATE}.max_num_batched_tokens", 95, 96, {f"{GENERATE}.max_num_seqs": 96}
    ),
    "prompts in one piece": Broken(
        f"{GENERATE}.max_num_batched_tokens", 63, 64, {f"{GENERATE}.max_num_seqs": 8}
    ),
    "packing of dynamic batches": Broken(f"{RL}.use_remove_padding", False, True, DYNAMIC),
    "token budget": Broken(f"{RL}.max_packing_token_size", 47, 48, DYNAMIC),
    "actor's token budget": Broken(f"{RL}.actor_max_packing_token_size", 1, 48, DYNAMIC),
    "reference's token budget": Broken(f"{RL}.ref_max_packing_token_size", 20, 48, DYNAMIC),
    "update's token budget": Broken(f"{RL}.update_max_packing_token_size", 46, 48, DYNAMIC),
    # Learning.
    "recomputation without a method": Broken(
        f"{ACTOR}.recompute_method",
        None,
        "uniform",
        {f"{ACTOR}.recompute_granularity": "full", f"{ACTOR}.recompute_num_layers": 1},
    ),
    "recomputation without layers": Broken(
        f"{ACTOR}.recompute_num_layers",
        None,
        1,
        {f"{ACTOR}.recompute_granularity": "full", f"{ACTOR}.recompute_method": "block"},
    ),
    "a method without recomputation": Broken(f"{ACTOR}.recompute_method", "block", None),
    "layers without recomputation": Broken(f"{ACTOR}.recompute_num_layers", 1, None),
    "critic's layers without recomputation": Broken(f"{CRITIC}.recompute_num_layers", 1, None, GAE),
    "replayed routes without experts": Broken(
        f"{ACTOR}.router_replay", "R2", "none", {f"{RL}.old_log_probs": "recompute"}
    ),
    "replayed routes of graphs": Broken(
        f"{ACTOR}.router_replay", "R3", "none", {"generate_config.enforce_eager": False}, MOE
    ),
    "replayed routes of no pass": Broken(f"{ACTOR}.router_replay", "R2", "none", {}, MOE),
    "grouped experts in float32": Broken(f"{ACTOR}.moe_grouped_gemm", True, False, {}, MOE),
    "a rate that decays upwards": Broken(f"{ACTOR}.min_lr", 2e-3, 1e-3),
    "critic's rate that decays upwards": Broken(f"{CRITIC}.min_lr", 1e-4, 1e-5, GAE),
    "a warm-up of the whole run": Broken(f"{RL}.critic_warmup", 3, 2, GAE),
    "a warm-up without a critic": Broken(f"{RL}.critic_warmup", 1, 0),
    # Choices.
    "an estimator by a wrong name": Broken(f"{RL}.adv_estimator", "group_nrom", "group_norm"),
    "a reward without a weight": Broken(f"{RL}.verifier_weight", (1.0,), (1.0, 1.0), {}),
    "a weight without a reward": Broken(f"{RL}.verifier_weight", (1.0, 0.1, 0.2), (1.0, 0.1)),
    "a reward by a wrong name": Broken(
        f"{RL}.verifier_function", ("math_verfy", "boxed_format"), ("math_verify", "boxed_format")
    ),
    "evaluation without data": Broken(f"{RL}.test_freq", 10, 0),
    "two folders of a reference": Broken(
        f"{REF}.load", "a", None, {f"{RL}.integrated_mode_config.ref_model_load_path": "b"}
    ),
    "a backend of other devices": Broken(f"{TRAINING}.distributed_backend", "nccl", "gloo"),
    "a tokenizer folder that is not there": Broken(
        f"{TRAINING}.tokenizer_name_or_path", "/no/tokenizer", None
    ),
    # Memory.
    "a device without room for a KV cache": Broken(
        f"{GENERATE}.gpu_memory_utilization",
        0.01,
        0.14,
        {f"{GENERATE}.kv_cache_mib": None, f"{RL}.device_memory_mib": 8},
    ),
    "a KV cache above the device": Broken(
        f"{GENERATE}.kv_cache_mib", 16, 7, {f"{RL}.device_memory_mib": 8}
    ),
    "an optimizer that stays on the device": Broken(
        f"{GENERATE}.offload_train_optimizer",
        False,
        True,
        {f"{GENERATE}.kv_cache_mib": 6, f"{RL}.device_memory_mib": 10},
        {"vocab_size": 9600},
    ),
    "a device too small for any key": Broken(
        f"{RL}.device_memory_mib", 8, 9, {f"{GENERATE}.kv_cache_mib": 1}, {"vocab_size": 9600}
    ),
    "an optimizer above the host": Broken(
        f"{GENERATE}.offload_train_optimizer", True, False, {}, {"vocab_size": 96000}, host_mib=25
    ),
}


WITHOUT_LEGAL: dict[str, tuple[str, Values]] = {
    "no critic": ("critic_config", {f"{RL}.adv_estimator": "gae"}),
    "data of another format": (f"{TRAINING}.data_path", {f"{TRAINING}.data_path": __file__}),
    "held-out data of another format": (
        f"{TRAINING}.test_data_path",
        {f"{TRAINING}.test_data_path": __file__},
    ),
    "data that is not there": (
        f"{TRAINING}.data_path",
        {f"{TRAINING}.data_path": "/no/train.jsonl"},
    ),
    "a model that is not there": (f"{REF}.load", {f"{REF}.load": "/no/model", **REFERENCE}),
    "a reward twice": (
        f"{RL}.verifier_function",
        {
            f"{RL}.verifier_function": ["math_verify", "math_verify"],
            f"{RL}.verifier_weight": [1.0, 1.0],
        },
    ),
    "a reward that does not import": (
        f"{RL}.verifier_function",
        {f"{RL}.verifier_function": ["no.such:score"], f"{RL}.verifier_weight": [1.0]},
    ),
    "arguments that no reward takes": (
        f"{RL}.verifier_kwargs",
        {f"{RL}.verifier_kwargs": [{"limit": 3}, {}]},
    ),
    "no reward at all": (
        f"{RL}.verifier_weight",
        {f"{RL}.verifier_function": [], f"{RL}.verifier_weight": []},
    ),
}
"""Runs that break a rule whose way out is no single value: the key, and what breaks it."""
