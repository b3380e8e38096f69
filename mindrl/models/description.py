"""Model descriptions from Hugging Face's config.json. Imports no torch."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from mindrl.errors import ModelError
from mindrl.models.attention_window import attention_window, unsupported_window
from mindrl.models.config_file import read_config
from mindrl.models.gated_delta import (
    GATED_DELTA_FAMILIES,
    GatedDeltaNet,
    gated_delta_net,
    unsupported_nets,
)
from mindrl.models.mixture import (
    WITH_CORRECTION,
    count,
    expert_groups,
    experts_of,
    given,
    unsupported_deepseek,
    unsupported_gated_shared,
    unsupported_glm,
)
from mindrl.models.other_family import OtherFamily, VisionPart
from mindrl.models.refused_family import refused_family
from mindrl.models.rope import (
    STRICT,
    RopeScaling,
    rope_numbers,
    rope_scaling,
    rope_theta,
    rope_type,
    rotary_share,
    unsupported_rope,
)
from mindrl.models.vision import VISION_FAMILIES, has_tower

Size = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MoeDescription:
    """The mixture of experts of a model; field names follow config.json where they agree."""

    num_experts: Size
    num_experts_per_tok: Size
    intermediate_size: Size
    """Width of one routed expert."""
    shared_intermediate_size: Annotated[int, Field(ge=0)] = 0
    """Total width of all shared experts; 0 if there are none."""
    gated_shared: bool = False
    """Whether there is one shared expert, and a gate on its output."""
    norm_topk_prob: bool = False
    """Whether the weights of the chosen experts are normalised to sum to 1."""
    score_correction_bias: bool = False
    """Whether experts are chosen by sigmoids plus a float32 bias instead of a softmax."""
    groups: Size = 1
    """Number of groups of experts."""
    chosen_groups: Size = 1
    """Number of groups that one token's experts are chosen from."""
    scaling_factor: Annotated[float, Field(gt=0.0)] = 1.0
    """Multiplies the weights of the chosen experts."""
    dense_layers: frozenset[int] = frozenset()
    """Indices of the layers without experts."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class YarnDescription:
    """YaRN scaling of the rotary embedding, arXiv:2309.00071; field names follow config.json."""

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
    """Width of a dense feed-forward layer."""
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    vocab_size: Size
    rms_norm_eps: Annotated[float, Field(gt=0.0)]
    rope_theta: Annotated[float, Field(gt=0.0)]
    max_position_embeddings: Size
    tie_word_embeddings: bool
    rope_scaling: RopeScaling | None = None
    """Scaling of the rotary frequencies; latent attention has its own."""
    partial_rotary_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Part of each query and key head that is rotated: its first dimensions."""
    sliding_window: Size | None = None
    """Number of tokens that a token attends to, itself included; None is no limit."""
    attention_bias: bool = False
    """Whether the projections to queries, keys and values have a bias."""
    qk_norm: bool = False
    """Whether queries and keys are normalised head by head."""
    fused_projections: bool = False
    """Whether the files store Q, K and V as one matrix, and gate and up as another."""
    moe: MoeDescription | None = None
    mla: MlaDescription | None = None
    delta: GatedDeltaNet | None = None
    """Layers of linear attention; None if all layers have full attention. With them, each query
    head has a gate of its output, and norms multiply by 1 + weight."""
    other: OtherFamily | None = None
    """Tensors of a model outside the supported families; None inside them."""

    def __post_init__(self) -> None:
        """Refuse heads that do not divide into groups, or into pairs of rotated dimensions."""
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads={self.num_key_value_heads} must divide "
                f"num_attention_heads={self.num_attention_heads}"
            )
        if self.partial_rotary_factor != 1.0 and self.rotary_width % 2:
            raise ValueError(
                f"partial_rotary_factor={self.partial_rotary_factor} must be an even number of "
                f"head_dim={self.head_dim} dimensions, found {self.rotary_width}"
            )

    @property
    def reads_images(self) -> bool:
        """Whether the model has a vision tower."""
        return self.vision is not None

    @property
    def vision(self) -> VisionPart | None:
        """The vision tower; None for a model of text."""
        return self.other.vision if self.other else None

    def with_frozen_tower(self) -> "ModelDescription":
        """Return the model with its vision tower frozen; a model of text is unchanged."""
        if self.other is None or self.other.vision is None:
            return self
        frozen = replace(self.other.vision, is_frozen=True)
        return replace(self, other=replace(self.other, vision=frozen))

    @property
    def class_name(self) -> str:
        """Class in transformers if mindrl has no network of the family, otherwise the family."""
        return self.other.architecture if self.other else self.model_type

    @property
    def is_routed_by_own_tokens(self) -> bool:
        """Whether tensor-parallel ranks must have different tokens, as mindrl's routers need."""
        return self.moe is not None and self.other is None

    @property
    def heads_per_group(self) -> int:
        """Number of query heads per key-value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def rotary_width(self) -> int:
        """Number of dimensions of a query or key head that are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def attention_layers(self) -> int:
        """Number of layers that attend to all earlier tokens, and have keys and values of them."""
        return self.num_hidden_layers - len(self.delta.layers if self.delta else ())

    def is_linear(self, layer: int) -> bool:
        """Return whether a layer is a gated delta net."""
        return self.delta is not None and layer in self.delta.layers


def read_description(folder: str, *, to_plan: bool = False) -> ModelDescription:
    """Read the config.json of a model folder, or a config.json file.

    `to_plan` skips the checks for features that can be planned but not run.

    Raises:
        ModelError: The folder or the file is missing or unreadable, the family is not supported, or
            a size is missing.
    """
    path, values = read_config(folder)
    family = values.get("model_type")
    if has_tower(values):
        raise ModelError(
            f"{path}: model_type={family!r} has a vision tower, which only archon and fsdp "
            "train; needed actor_config.backend=archon:d2, or of another size"
        )
    for text in refused_family(values):
        raise ModelError(f"{path}: {text}")
    if not is_known(values):
        near = difflib.get_close_matches(str(family), _FAMILIES, n=1)
        raise ModelError(
            f"{path}: model_type={family!r} is not supported; supported: {', '.join(_FAMILIES)}"
            + (f"; nearest: {near[0]}" if near else "")
            + (
                "; fsdp trains models of any family "
                "(docs/how-to/train-with-archon.md#any-hugging-face-model); to add a family "
                "or your own network, see docs/how-to/add-a-model.md"
            )
        )
    unsupported = () if to_plan else unsupported_text(values)
    return described(path, _sizes, values, unsupported)


def planned_text(path: Path, values: Mapping[str, Any]) -> ModelDescription:
    """Describe a decoder of a known family by its config.json, to plan: see `read_description`."""
    return described(path, _sizes, values, ())


def is_known(values: Mapping[str, Any]) -> bool:
    """Return whether a config.json belongs to a family with a network in mindrl."""
    return values.get("model_type") in _FAMILIES


def described(
    path: Path,
    sizes: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    values: Mapping[str, Any],
    unsupported: Iterable[str],
) -> ModelDescription:
    """Return the description with the sizes that `sizes` reads from config.json.

    Raises:
        ModelError: Something is unsupported, or a size is missing or invalid.
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


def unsupported_text(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield features of a decoder that mindrl's own decoder lacks and would ignore."""
    if values.get("hidden_act", "silu") != "silu":
        yield f"hidden_act={values['hidden_act']!r} is not supported; only 'silu'"
    if values.get("quantization_config"):
        yield "quantized weights (quantization_config) are not supported"
    for name in ("attention_bias", "mlp_bias"):
        if values.get(name) and (name, values["model_type"]) not in _BIASED:
            yield f"{name}=true is not supported in this family"
    yield from unsupported_head(values)
    family = values["model_type"]
    layers = unsupported_nets if family in GATED_DELTA_FAMILIES else unsupported_window
    yield from layers(values)
    yield from unsupported_gated_shared(values)
    if family.startswith("deepseek"):
        yield from unsupported_deepseek(values)
        yield from _unsupported_groups(values)
        return
    if family == "glm4_moe":
        yield from unsupported_glm(values)
        yield from _unsupported_groups(values)
    yield from unsupported_rope(values, _ROPE_SCALINGS.get(family, _LLAMA_ROPE))


def _unsupported_groups(values: Mapping[str, Any]) -> Iterator[str]:
    groups, chosen = expert_groups(values)
    experts, family = count(values, "num_experts_per_tok") or 1, values["model_type"]
    # DeepSeek-V2 ranks a group by its best expert, later ones by the sum of its two best.
    best = 1 + (family in WITH_CORRECTION)
    if groups > chosen and experts // chosen != best:
        yield (
            f"topk_group={chosen} is not supported: megatron ranks expert groups by their "
            f"best num_experts_per_tok // topk_group = {experts // chosen}, but "
            f"{family} by their best {best}; archon and fsdp have no groups"
        )


def unsupported_head(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text if a classifier is no value or reward model: several labels, or a bias."""
    named = str(values.get("architectures"))
    if not any(name in named for name in _CLASSIFIERS):
        return
    # By default transformers uses two labels and, for tokens, a bias.
    names = values.get("id2label")
    labels = values.get("num_labels", len(names) if isinstance(names, dict) else 2)
    if labels != 1:
        yield f"num_labels={labels} is not supported; only 1"
    if _CLASSIFIERS[1] in named and values.get("token_classification_bias", True):
        yield "token_classification_bias=true is not supported; only false"


def _sizes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes, with transformers' defaults for omitted ones."""
    heads, hidden = values.get("num_attention_heads"), values.get("hidden_size")
    head_dim = values.get("head_dim")
    if head_dim is None and isinstance(heads, int) and isinstance(hidden, int) and heads:
        head_dim = hidden // heads
    named = {field.name for field in fields(ModelDescription)} - _NOT_AS_NAMED
    found = given(
        {
            "tie_word_embeddings": False,
            "num_key_value_heads": heads,
            **given({name: value for name, value in values.items() if name in named}),
            "head_dim": head_dim,
            "rope_theta": rope_theta(values),
            "rope_scaling": rope_scaling(values),
            "sliding_window": attention_window(values),
        }
    )
    family = values["model_type"]
    if experts := experts_of(values):
        found["moe"] = MoeDescription(**experts)
    if family.startswith("deepseek"):
        found["mla"] = _latent(values)
    elif family == "glm4_moe":
        found["qk_norm"] = values.get("use_qk_norm") or False
        found["partial_rotary_factor"] = rotary_share(values)
    elif family in GATED_DELTA_FAMILIES:
        found["delta"] = gated_delta_net(values)
        found["partial_rotary_factor"] = rotary_share(values)
        if experts and not experts["dense_layers"]:
            # No layer reads it, and Qwen3.5's mixtures omit it.
            found.setdefault("intermediate_size", experts["intermediate_size"])
    elif family == "llama":
        # Llama 2 omits it.
        found["rope_theta"] = rope_theta(values) or 10_000.0
    return {**found, **_FAMILIES[family]}


def _latent(values: Mapping[str, Any]) -> MlaDescription:
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    found = given({name: values.get(name) for name in names})
    if rope_type(values) == "yarn":
        found["yarn"] = YarnDescription(**rope_numbers(values, YarnDescription))
    return MlaDescription(**found, q_lora_rank=values.get("q_lora_rank"))


_NOT_AS_NAMED = {"sliding_window", "partial_rotary_factor"}
"""Fields that are not read under their names in every family."""
_BIASED = {("attention_bias", "qwen2"), ("attention_bias", "glm4_moe")}
"""Biases that some family has."""
_CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
_LLAMA_ROPE = ("linear", "llama3")
_ROPE_SCALINGS: Mapping[str, tuple[str, ...]] = {
    "phi3": (),
    "glm4_moe": (),
    **dict.fromkeys((*GATED_DELTA_FAMILIES, *VISION_FAMILIES), ()),
}
"""Rotary scalings of a family that differ from Llama's."""
_FAMILIES: Mapping[str, Mapping[str, bool]] = {
    "llama": {},
    "mistral": {},
    "phi3": {"fused_projections": True},
    "qwen2": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "deepseek_v2": {"attention_bias": False},
    "deepseek_v3": {"attention_bias": False},
    "glm4_moe": {},
    **{family: {"qk_norm": True} for family in GATED_DELTA_FAMILIES},
}
"""Features of each supported family that do not depend on config.json."""
