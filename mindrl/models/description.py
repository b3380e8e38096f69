"""What a Hugging Face config.json says about a model. Imports no torch."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from mindrl.errors import ModelError
from mindrl.models.attention_window import attention_window, unsupported_window
from mindrl.models.config_file import read_config
from mindrl.models.other_family import OtherFamily
from mindrl.models.rope import (
    STRICT,
    RopeScaling,
    rope_numbers,
    rope_scaling,
    rope_theta,
    rope_type,
    rope_values,
    unsupported_rope,
)

Size = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MoeDescription:
    """The mixture of experts of a model; field names follow config.json where they agree."""

    num_experts: Size
    num_experts_per_tok: Size
    intermediate_size: Size
    """Of one routed expert."""
    shared_intermediate_size: Annotated[int, Field(ge=0)] = 0
    """Of all shared experts together; 0 where there are none."""
    norm_topk_prob: bool = False
    """Whether the weights of the chosen experts add to 1."""
    score_correction_bias: bool = False
    """Whether experts are chosen by sigmoids plus a float32 bias, and not by a softmax."""
    groups: Size = 1
    """The experts fall into so many groups."""
    chosen_groups: Size = 1
    """A token's experts are all in so many of them."""
    scaling_factor: Annotated[float, Field(gt=0.0)] = 1.0
    """Of the weights of the chosen experts."""
    dense_layers: frozenset[int] = frozenset()
    """Layers without experts."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class YarnDescription:
    """A stretched rotary embedding, arXiv:2309.00071; field names follow config.json."""

    factor: Annotated[float, Field(ge=1.0)]
    original_max_position_embeddings: Size
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MlaDescription:
    """Multi-head latent attention; field names follow config.json."""

    q_lora_rank: Size | None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    yarn: YarnDescription | None = None

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelDescription:
    """Sizes of a decoder-only model; field names follow config.json."""

    model_type: str
    num_hidden_layers: Size
    hidden_size: Size
    intermediate_size: Size
    """Of a dense feed-forward layer."""
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    vocab_size: Size
    rms_norm_eps: Annotated[float, Field(gt=0.0)]
    rope_theta: Annotated[float, Field(gt=0.0)]
    max_position_embeddings: Size
    tie_word_embeddings: bool
    rope_scaling: RopeScaling | None = None
    """How rotary frequencies are scaled; latent attention has its own."""
    sliding_window: Size | None = None
    """Tokens that a token sees, itself included; None is all before it."""
    attention_bias: bool = False
    """Whether the projections to queries, keys and values have a bias."""
    qk_norm: bool = False
    """Whether queries and keys are normalised head by head."""
    fused_projections: bool = False
    """Whether the files hold Q, K and V as one matrix, and gate and up as another."""
    moe: MoeDescription | None = None
    mla: MlaDescription | None = None
    other: OtherFamily | None = None
    """Of a model outside the families; of one inside them None."""

    def __post_init__(self) -> None:
        """Refuse heads that do not fall into equal groups."""
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads={self.num_key_value_heads} must divide "
                f"num_attention_heads={self.num_attention_heads}"
            )

    @property
    def heads_per_group(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_attention_heads // self.num_key_value_heads


def read_description(folder: str, *, to_plan: bool = False) -> ModelDescription:
    """Read the config.json of a model folder, or one by itself.

    With `to_plan` only sizes are wanted: what can be planned but not run is accepted.

    Raises:
        ModelError: The folder or the file is missing or unreadable, the family is not
            supported, or a size is missing.
    """
    path, values = read_config(folder)
    family = values.get("model_type")
    if not is_known(values):
        near = difflib.get_close_matches(str(family), _FAMILIES, n=1)
        raise ModelError(
            f"{path}: model_type={family!r} is not supported; supported: {', '.join(_FAMILIES)}"
            + (f"; nearest: {near[0]}" if near else "")
            + "; to add a family, follow docs/how-to/add-a-model.md; with a network of your own "
            "for archon, docs/how-to/add-an-archon-model.md; where fsdp trains every role, "
            "models may be of any: docs/how-to/train-any-hugging-face-model.md"
        )
    unsupported = () if to_plan else _unsupported(values)
    return described(path, _sizes, values, unsupported)


def is_known(values: Mapping[str, Any]) -> bool:
    """Tell whether a config.json is of a family that mindrl has a network of."""
    return values.get("model_type") in _FAMILIES


def described(
    path: Path,
    sizes: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    values: Mapping[str, Any],
    unsupported: Iterable[str],
) -> ModelDescription:
    """Describe a model by what `sizes` finds in its config.json.

    Raises:
        ModelError: Something is unsupported, or a size is missing or none.
    """
    try:
        for each in unsupported:
            raise ModelError(f"{path}: {each}")
        return ModelDescription(**sizes(values))
    except ValidationError as error:
        raise ModelError(f"{path}{_first_finding(error)}") from error
    except ValueError as error:
        raise ModelError(f"{path}: {error}") from error


def _first_finding(error: ValidationError) -> str:
    found = error.errors(include_url=False)[0]
    name = ".".join(map(str, found["loc"]))
    if found["type"] == "missing":
        return f" has no {name!r}"
    if found["type"] == "value_error":
        return f": {found['ctx']['error']}"
    return f": {name}={found['input']!r} {found['msg'].replace('Input should be', 'must be')}"


def _unsupported(values: Mapping[str, Any]) -> Iterator[str]:
    """Name what the model needs and mindrl does not have; otherwise it would be ignored."""
    if values.get("hidden_act", "silu") != "silu":
        yield f"hidden_act={values['hidden_act']!r} is not supported; only 'silu'"
    if values.get("quantization_config"):
        yield "quantized weights (quantization_config) are not supported"
    for name in ("attention_bias", "mlp_bias"):
        if values.get(name) and (name, values["model_type"]) != ("attention_bias", "qwen2"):
            yield f"{name}=true is not supported in this family"
    yield from unsupported_head(values)
    yield from unsupported_window(values)
    if values["model_type"].startswith("deepseek"):
        yield from _unsupported_deepseek(values)
    else:
        yield from unsupported_rope(values, _ROPE_SCALINGS.get(values["model_type"], _LLAMA_ROPE))


def unsupported_head(values: Mapping[str, Any]) -> Iterator[str]:
    """Name what a value or a reward is not: several numbers, or a product plus a bias."""
    named = str(values.get("architectures"))
    if not any(name in named for name in _CLASSIFIERS):
        return
    # Left out, transformers takes two labels and, of tokens, a bias.
    names = values.get("id2label")
    labels = values.get("num_labels", len(names) if isinstance(names, dict) else 2)
    if labels != 1:
        yield f"num_labels={labels} is not supported; only 1"
    if _CLASSIFIERS[1] in named and values.get("token_classification_bias", True):
        yield "token_classification_bias=true is not supported; only false"


def _unsupported_deepseek(values: Mapping[str, Any]) -> Iterator[str]:
    """Name what no training engine's router and stretched embedding can be told."""
    rope, third = rope_values(values), values["model_type"] == "deepseek_v3"
    # With one of the two alone, transformers and either engine would stretch differently.
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
        # Left out, the rollout engine takes softmax and no bias, whatever the family.
        assumed |= {"scoring_func": None, "topk_method": None}
    for name, legal in wanted.items():
        found = values.get(name, assumed[name])
        if found not in legal:
            yield f"{name}={found!r} is not supported; only {' and '.join(map(repr, legal))}"
    groups, chosen = _expert_groups(values)
    experts = _count(values, "num_experts_per_tok") or 1
    if values.get("topk_method") == "greedy" and (_count(values, "n_group") or 1) > 1:
        yield "topk_method='greedy' with groups of experts (n_group) is not supported"
    # A group counts by the sum of its two best experts in V3, by its best one in V2.
    if groups > chosen and experts // chosen != 1 + third:
        yield (
            f"topk_group={chosen} is not supported: megatron ranks the groups of experts by their "
            f"best num_experts_per_tok // topk_group = {experts // chosen}, {values['model_type']} "
            f"by their best {1 + third}; archon and fsdp have no groups"
        )


def _expert_groups(values: Mapping[str, Any]) -> tuple[int, int]:
    """Return into how many groups the experts fall, and how many of them a token may use."""
    if values.get("topk_method") == "greedy":
        return 1, 1
    return _count(values, "n_group") or 1, _count(values, "topk_group") or 1


def _sizes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the sizes, with the defaults that transformers gives to those left out."""
    heads, hidden = values.get("num_attention_heads"), values.get("hidden_size")
    head_dim = values.get("head_dim")
    if head_dim is None and isinstance(heads, int) and isinstance(hidden, int) and heads:
        head_dim = hidden // heads
    named = {field.name for field in fields(ModelDescription)} - {"sliding_window"}
    found = _given(
        {
            "tie_word_embeddings": False,
            "num_key_value_heads": heads,
            **_given({name: value for name, value in values.items() if name in named}),
            "head_dim": head_dim,
            "rope_theta": rope_theta(values),
            "rope_scaling": rope_scaling(values),
            "sliding_window": attention_window(values),
        }
    )
    family = values["model_type"]
    if family.startswith("deepseek"):
        found |= _deepseek_parts(values)
    elif family == "qwen3_moe":
        found |= _qwen3_experts(values)
    elif family == "llama":
        # Llama 2 leaves it out.
        found["rope_theta"] = rope_theta(values) or 10_000.0
    return {**found, **_FAMILIES[family]}


def _qwen3_experts(values: Mapping[str, Any]) -> dict[str, Any]:
    step = _count(values, "decoder_sparse_step", least=1) or 1
    listed = values.get("mlp_only_layers") or []
    if not isinstance(listed, list):
        raise ValueError(f"mlp_only_layers={listed!r} must be a list")  # noqa: TRY004 - as others
    layers = range(_count(values, "num_hidden_layers") or 0)
    dense = {layer for layer in layers if (layer + 1) % step}
    moe = {
        # transformers 5 writes the second name.
        "num_experts": values.get("num_experts", values.get("num_local_experts")),
        "num_experts_per_tok": values.get("num_experts_per_tok"),
        "intermediate_size": values.get("moe_intermediate_size"),
        "norm_topk_prob": values.get("norm_topk_prob", False),
        "dense_layers": frozenset(dense | set(listed)),
    }
    return {"moe": MoeDescription(**_given(moe))}


def _deepseek_parts(values: Mapping[str, Any]) -> dict[str, Any]:
    layers = range(_count(values, "num_hidden_layers") or 0)
    first = _count(values, "first_k_dense_replace") or 0
    step = _count(values, "moe_layer_freq", least=1) or 1
    width = _count(values, "moe_intermediate_size")
    groups, chosen = _expert_groups(values)
    moe = {
        "num_experts": values.get("n_routed_experts"),
        "num_experts_per_tok": values.get("num_experts_per_tok"),
        "intermediate_size": width,
        "shared_intermediate_size": (_count(values, "n_shared_experts") or 0) * (width or 0),
        "norm_topk_prob": values.get("norm_topk_prob", False),
        "score_correction_bias": values["model_type"] == "deepseek_v3",
        "groups": groups,
        "chosen_groups": chosen,
        "scaling_factor": values.get("routed_scaling_factor"),
        "dense_layers": frozenset(layer for layer in layers if layer < first or layer % step),
    }
    mla_names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    mla = _given({name: values.get(name) for name in mla_names})
    if rope_type(values) == "yarn":
        mla["yarn"] = YarnDescription(**rope_numbers(values, YarnDescription))
    return {
        "moe": MoeDescription(**_given(moe)),
        "mla": MlaDescription(**mla, q_lora_rank=values.get("q_lora_rank")),
    }


def _count(values: Mapping[str, Any], name: str, *, least: int = 0) -> int | None:
    """Return a number that is reckoned with before the description is checked.

    Raises:
        ValueError: It is none.
    """
    found = values.get(name)
    if found is not None and type(found) is not int:
        raise ValueError(f"{name}={found!r} must be a valid integer")
    if found is not None and found < least:
        raise ValueError(f"{name}={found!r} must be greater than or equal to {least}")
    return found


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what config.json lacks, so that its absence is reported by name."""
    return {name: value for name, value in values.items() if value is not None}


_CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
_LLAMA_ROPE = ("linear", "llama3")
_ROPE_SCALINGS: Mapping[str, tuple[str, ...]] = {"phi3": ()}
"""Those of a family, where they are not Llama's."""
_FAMILIES: Mapping[str, Mapping[str, bool]] = {
    "llama": {},
    "mistral": {},
    "phi3": {"fused_projections": True},
    "qwen2": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "deepseek_v2": {"attention_bias": False},
    "deepseek_v3": {"attention_bias": False},
}
"""What each supported family has whatever its config.json says."""
