"""Mixtures of experts in config.json: names of sizes, defaults, and unsupported settings.

Imports no torch.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.models.rope import rope_type, rope_values


def experts_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `MoeDescription` that config.json has; empty for dense families.

    Raises:
        ValueError: A value is not a number, or too small.
    """
    family = values["model_type"]
    if family == "qwen3_moe":
        return given(_qwen3(values))
    if family in _GATED_SHARED:
        return given(_with_gated_shared(values))
    if family == "glm4_moe":
        return given(_routed_and_shared({**_GLM, **given(values)}))
    return given(_routed_and_shared(values)) if family.startswith("deepseek") else {}


def _qwen3(values: Mapping[str, Any]) -> dict[str, Any]:
    step = count(values, "decoder_sparse_step", least=1) or 1
    listed = values.get("mlp_only_layers") or []
    if not isinstance(listed, list):
        raise ValueError(f"mlp_only_layers={listed!r} must be a list")  # noqa: TRY004 - as others
    layers = range(count(values, "num_hidden_layers") or 0)
    dense = {layer for layer in layers if (layer + 1) % step}
    return {
        # transformers 5 writes the second name.
        "num_experts": values.get("num_experts", values.get("num_local_experts")),
        "num_experts_per_tok": values.get("num_experts_per_tok"),
        "intermediate_size": values.get("moe_intermediate_size"),
        "norm_topk_prob": values.get("norm_topk_prob", False),
        "dense_layers": frozenset(dense | set(listed)),
    }


def _with_gated_shared(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experts of families whose shared expert has a gate of its own."""
    # Only the first of the families has layers without experts.
    steps = values if values["model_type"] == "qwen3_next" else {**values, **_EVERY_LAYER}
    return {
        **_qwen3(steps),
        "shared_intermediate_size": count(values, "shared_expert_intermediate_size", least=1),
        "gated_shared": True,
        "norm_topk_prob": values.get("norm_topk_prob", True),
    }


def unsupported_gated_shared(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings of Qwen3.5's mixtures that transformers ignores but other engines read."""
    if values.get("model_type") == "qwen3_5_moe_text" and values.get("norm_topk_prob") is False:
        yield "norm_topk_prob=False is not supported; only True"


def _routed_and_shared(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experts of DeepSeek and GLM: dense layers first, shared experts, groups."""
    layers = range(count(values, "num_hidden_layers") or 0)
    first = count(values, "first_k_dense_replace") or 0
    step = count(values, "moe_layer_freq", least=1) or 1
    width = count(values, "moe_intermediate_size")
    groups, chosen = expert_groups(values)
    return {
        "num_experts": values.get("n_routed_experts"),
        "num_experts_per_tok": values.get("num_experts_per_tok"),
        "intermediate_size": width,
        "shared_intermediate_size": (count(values, "n_shared_experts") or 0) * (width or 0),
        "norm_topk_prob": values.get("norm_topk_prob", False),
        "score_correction_bias": values["model_type"] in WITH_CORRECTION,
        "groups": groups,
        "chosen_groups": chosen,
        "scaling_factor": values.get("routed_scaling_factor"),
        "dense_layers": frozenset(layer for layer in layers if layer < first or layer % step),
    }


def unsupported_deepseek(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield router and rotary settings that no training engine supports."""
    rope, third = rope_values(values), values["model_type"] == "deepseek_v3"
    # With only one of the two, transformers and each engine scale differently.
    odd = {"attention_factor", "truncate"} & rope.keys()
    odd |= {"mscale"} if bool(rope.get("mscale")) != bool(rope.get("mscale_all_dim")) else set()
    if odd or rope_type(values) not in ("default", "yarn"):
        yield f"rope scaling {rope} is not supported; only default and DeepSeek's yarn"
    wanted = {
        "rope_interleave": (True,),
        "norm_topk_prob": (third,),
        "scoring_func": ("sigmoid" if third else "softmax",),
        "topk_method": ("noaux_tc",) if third else ("greedy", "group_limited_greedy"),
    }
    assumed = {name: legal[0] for name, legal in wanted.items()}
    if third:
        # If omitted, the rollout engine uses softmax and no bias, for every family.
        assumed |= {"scoring_func": None, "topk_method": None}
    for name, legal in wanted.items():
        found = values.get(name, assumed[name])
        if found not in legal:
            yield f"{name}={found!r} is not supported; only {' and '.join(map(repr, legal))}"
    if values.get("topk_method") == "greedy" and (count(values, "n_group") or 1) > 1:
        yield "topk_method='greedy' with groups of experts (n_group) is not supported"


def unsupported_glm(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings of `glm4_moe` that an engine would compute differently from transformers."""
    found = {**_GLM, **given(values)}
    if found["norm_topk_prob"] is not True:
        yield f"norm_topk_prob={found['norm_topk_prob']!r} is not supported; only True"
    if found.get("num_experts_per_tok") == 1:
        # The training engine does not normalise the weight of a single expert to 1.
        yield "num_experts_per_tok=1 is not supported; only 2 or more"
    if found.get("tie_word_embeddings"):
        # The rollout engine's class has a head of its own.
        yield "tie_word_embeddings=True is not supported; only False"


def expert_groups(values: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of expert groups, and how many of them a token may use."""
    if values.get("topk_method") == "greedy":
        return 1, 1
    return count(values, "n_group") or 1, count(values, "topk_group") or 1


def count(values: Mapping[str, Any], name: str, *, least: int = 0) -> int | None:
    """Return an integer that is used before the description is validated.

    Raises:
        ValueError: The value is not an integer, or too small.
    """
    found = values.get(name)
    if found is not None and type(found) is not int:
        raise ValueError(f"{name}={found!r} must be a valid integer")
    if found is not None and found < least:
        raise ValueError(f"{name}={found!r} must be greater than or equal to {least}")
    return found


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop what config.json lacks, so that a missing size is reported by name."""
    return {name: value for name, value in values.items() if value is not None}


_GATED_SHARED = ("qwen3_next", "qwen3_5_moe_text")
_EVERY_LAYER: Mapping[str, Any] = {"decoder_sparse_step": 1, "mlp_only_layers": []}
WITH_CORRECTION = ("deepseek_v3", "glm4_moe")
"""Families that choose experts by sigmoids plus a bias."""
_GLM: Mapping[str, Any] = {
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
}
"""Values of `glm4_moe` in transformers where config.json has none."""
