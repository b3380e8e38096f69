"""Convert a MindSpeed-RL model file to config.json keys, for plans only, not for runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from mindrl.migrate.file import TheirModel, TheirRun, numbers
from mindrl.migrate.keys import words


def _names(text: str) -> dict[str, list[str]]:
    """Parse `config.json key=MindSpeed-RL keys, newest first`; a single name stands for both."""
    pairs = [word.partition("=") for word in words(text)]
    return {ours: (theirs or ours).split(",") for ours, _, theirs in pairs}


_OF_ALL = _names("""
    num_hidden_layers=num_layers hidden_size intermediate_size=ffn_hidden_size num_attention_heads
    head_dim=kv_channels vocab_size=padded_vocab_size max_position_embeddings
    rms_norm_eps=norm_epsilon rope_theta=rotary_base
""")
_OF_EXPERTS = _names("""
    num_experts_per_tok=moe_router_topk
    moe_intermediate_size=moe_ffn_hidden_size,moe_intermediate_size
    norm_topk_prob n_shared_experts first_k_dense_replace moe_layer_freq
    n_group=moe_router_num_groups,n_group topk_group=moe_router_group_topk,topk_group
    routed_scaling_factor=moe_router_topk_scaling_factor,routed_scaling_factor
""")
_OF_LATENT = _names("""
    q_lora_rank kv_lora_rank qk_nope_head_dim=qk_head_dim,qk_nope_head_dim
    qk_rope_head_dim=qk_pos_emb_head_dim,qk_rope_head_dim v_head_dim
""")
_MEGATRON: Mapping[str, Any] = {"rms_norm_eps": 1e-5, "rope_theta": 10_000}
_MEGATRON_EXPERTS = {"num_experts_per_tok": 2, "first_k_dense_replace": 0, "moe_layer_freq": 1}
"""Megatron's defaults for keys that the file omits."""


def model_sizes(theirs: TheirRun) -> dict[str, Any] | None:
    """Return the sizes of the actor's model as config.json keys and values.

    Returns None if the file omits a size without a default, or the family is unknown.
    """
    model = theirs.actor
    found = {**_MEGATRON, **_named(model, _OF_ALL)}
    if not found.keys() >= _OF_ALL.keys() - {"head_dim"}:
        return None
    # mindrl leaves out the layers that are empty in MindSpeed-RL.
    found["num_hidden_layers"] -= len(numbers(model.value("noop_layers")))
    if model.value("group_query_attention"):
        found["num_key_value_heads"] = model.value("num_query_groups") or 1
    found["tie_word_embeddings"] = not model.value("untie_embeddings_and_output_weights")
    family = _family(model, found)
    return None if family is None else found | family


def _named(model: TheirModel, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    found = {
        ours: next((each for each in map(model.value, keys) if each is not None), None)
        for ours, keys in names.items()
    }
    return {ours: value for ours, value in found.items() if value is not None}


def _family(model: TheirModel, sizes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the keys that differ between model families."""
    latent = model.value("multi_latent_attention") or model.value("multi_head_latent_attention")
    if model.has_experts:
        width = {"moe_intermediate_size": sizes["intermediate_size"]}
        experts = {**_MEGATRON_EXPERTS, **width, **_named(model, _OF_EXPERTS)}
        if latent:
            return _deepseek(model, experts)
        return _qwen3_moe(model, experts, sizes["num_hidden_layers"])
    if latent:
        return None
    if model.value("qk_layernorm"):
        return {"model_type": "qwen3"}
    return {"model_type": "qwen2" if model.value("add_qkv_bias") else "llama"}


def _deepseek(model: TheirModel, experts: Mapping[str, Any]) -> dict[str, Any]:
    third = model.value("moe_router_score_function") == "sigmoid"
    return {
        **experts,
        **_named(model, _OF_LATENT),
        "n_routed_experts": model.value("num_experts"),
        "model_type": "deepseek_v3" if third else "deepseek_v2",
        "scoring_func": "sigmoid" if third else "softmax",
        "topk_method": "noaux_tc" if third else "group_limited_greedy",
    }


def _qwen3_moe(model: TheirModel, experts: dict[str, Any], layers: int) -> dict[str, Any] | None:
    first, step = experts["first_k_dense_replace"], experts["moe_layer_freq"]
    if experts.get("n_shared_experts") or not isinstance(step, int):
        return None
    return {
        **experts,
        "num_experts": model.value("num_experts"),
        "model_type": "qwen3_moe",
        "mlp_only_layers": [each for each in range(layers) if each < first or each % step],
    }
