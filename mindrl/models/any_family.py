"""Describe a causal language model of any family: its sizes and its tensors.

Reads the names of config.json that transformers uses, and the headers of the weight files. Imports
no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mindrl.models.config_file import text_values
from mindrl.models.decoder import VALUE_HEAD, layer_of
from mindrl.models.description import (
    ModelDescription,
    MoeDescription,
    described,
    unsupported_head,
)
from mindrl.models.gated_delta import gated_delta_net, unsupported_layers
from mindrl.models.mixture import experts_of, unsupported_gated_shared
from mindrl.models.other_family import OtherFamily
from mindrl.models.placement import Shape
from mindrl.models.refused_family import refused_family
from mindrl.models.tensor_plans import cuts_of, installed_plan, shared_modules
from mindrl.models.vision import decoder_numbers, has_tower, unsupported_vision, vision_part


def any_description(
    path: Path,
    values: Mapping[str, Any],
    tensors: Mapping[str, Shape],
    ends: tuple[str, str] | None = None,
) -> ModelDescription:
    """Describe a model by its config.json and the shapes of the tensors in its files.

    `ends` are the embedding and the head; None detects them. Except in families with a tower, the
    epsilon of norms and the base of rotary frequencies are set to 1, because no plan uses them.

    Raises:
        ModelError: A size is missing, or packs or a plain head cannot represent the model.
    """
    tensors = {name: shape for name, shape in tensors.items() if name != VALUE_HEAD}
    values = text_values(values)
    sizes = partial(_sizes, tensors, ends)
    return described(path, sizes, values, _unsupported(values, tensors))


def _sizes(
    tensors: Mapping[str, Shape], ends: tuple[str, str] | None, values: Mapping[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model_type": values.get("model_type"),
        "rms_norm_eps": 1.0,
        "rope_theta": 1.0,
    }
    for name, others in _NAMES.items():
        found[name] = _first(values, (name, *others))
    if None not in (matrix := (found["vocab_size"], found["hidden_size"])):
        embedding, head = ends or _ends(tensors, matrix)
        # config.json may omit it; the files show the family's choice.
        found["tie_word_embeddings"] = embedding == head
        found["other"] = _other(values, tensors, embedding, head)
        found["delta"] = found["other"].delta
        # Families with gated delta nets normalise queries and keys of their other layers.
        found["qk_norm"] = found["delta"] is not None
        found |= decoder_numbers(values)
        if found["delta"] and (experts := experts_of(values)):
            found["moe"] = MoeDescription(**experts)
    heads, hidden = found["num_attention_heads"], found["hidden_size"]
    if isinstance(hidden, int) and isinstance(heads, int) and heads:
        width = values.get("head_dim")
        found["head_dim"] = hidden // heads if width is None else width
        found["intermediate_size"] = found["intermediate_size"] or 4 * hidden
        found["num_key_value_heads"] = found["num_key_value_heads"] or heads
    return {name: value for name, value in found.items() if value is not None}


def _ends(tensors: Mapping[str, Shape], matrix: tuple[Any, Any]) -> tuple[str, str]:
    """Return the names of the embedding and of the head; the embedding is next to the layers.

    Raises:
        ValueError: There is no such tensor, or more than one.
    """
    found = [name for name, shape in tensors.items() if shape == matrix and layer_of(name) is None]
    models = {name.partition(".")[0] for name in tensors if layer_of(name) is not None}
    inside = [name for name in found if name.partition(".")[0] in models]
    outside = [name for name in found if name not in inside]
    if len(inside) != 1 or len(outside) > 1:
        raise ValueError(
            f"vocab_size x hidden_size={matrix[0]} x {matrix[1]} must be the shape of one "
            "tensor of the module with the layers and of at most one other tensor; found "
            f"{', '.join(found) or 'none'}"
        )
    return inside[0], (outside or inside)[0]


def _other(
    values: Mapping[str, Any], tensors: Mapping[str, Shape], embedding: str, head: str
) -> OtherFamily:
    # A plan of transformers covers the decoder; each rank has the whole tower.
    family = str(values.get("model_type"))
    plan = installed_plan(f"{family}_text" if has_tower(values) else family)
    styles = shared_modules(tensors, plan)
    return OtherFamily(
        architecture=values["architectures"][0],
        tensors=tuple(tensors.items()),
        embedding=embedding,
        head=head,
        cuts=None if styles is None else cuts_of(tensors, styles),
        styles=tuple((styles or {}).items()),
        delta=gated_delta_net(values),
        vision=vision_part(values, tensors),
    )


def _unsupported(values: Mapping[str, Any], tensors: Mapping[str, Shape]) -> Iterator[str]:
    """Yield what transformers would compute but packs or a plain head cannot."""
    yield from refused_family(values)
    classes = values.get("architectures")
    if not isinstance(classes, list) or len(classes) != 1:
        yield f"architectures={classes!r} must name one class"
    defaults = _DEFAULTS.get(str(values.get("model_type")), {})
    for name in _CHANGE_LOGITS:
        value = values.get(name, defaults.get(name))
        if value not in (None, 0, 1):
            given = "" if name in values else ", the default of its family,"
            yield (
                f"{name}={value!r}{given} is not supported; logits must come unchanged from "
                "the head"
            )
    if values.get("quantization_config"):
        yield "quantized weights (quantization_config) are not supported"
    if values.get("is_encoder_decoder"):
        yield "is_encoder_decoder=true is not supported"
    yield from unsupported_vision(values)
    yield from unsupported_head(values)
    yield from _unsupported_attention(values)
    for name, shape in tensors.items():
        if not shape:
            yield f"tensor {name} is a single number, which FSDP2 cannot shard"


def _unsupported_attention(values: Mapping[str, Any]) -> Iterator[str]:
    family = str(values.get("model_type"))
    if has_alibi(values):
        yield f"ALiBi, the attention bias of {family}, is not supported"
    if family in OWN_ATTENTION:
        yield (
            f"model_type={family!r} is not supported: its attention classes in "
            "transformers cannot separate packed sequences"
        )
    caps = _DEFAULTS.get(family, {}).get("attn_logit_softcapping")
    if values.get("attn_logit_softcapping", caps):
        yield "attn_logit_softcapping is not supported"
    if values.get("sliding_window") is not None and values.get("use_sliding_window") is not False:
        yield f"sliding_window={values['sliding_window']!r} is not supported; only null"
    yield from unsupported_layers(values)
    yield from unsupported_gated_shared(values)


def has_alibi(values: Mapping[str, Any]) -> bool:
    """Return whether attention adds a bias that depends on the distance of tokens (ALiBi)."""
    family, attention = values.get("model_type"), values.get("attn_config")
    if family == "mpt":
        return not isinstance(attention, Mapping) or bool(attention.get("alibi", True))
    return family == "bloom" or bool(values.get("alibi"))


def _first(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


_CHANGE_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "cohere": {"logit_scale": 0.0625},
    "cohere2": {"logit_scale": 0.0625},
    "cohere2_moe": {"logit_scale": 0.0625},
    "gemma2": {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    "vaultgemma": {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    "gemma3n_text": {"final_logit_softcapping": 30.0},
    "nanochat": {"final_logit_softcapping": 15.0},
    "minicpm3": {"logits_scaling": 10.0},
}
"""Defaults of a family's logit settings that config.json may omit."""
OWN_ATTENTION = frozenset({"falcon", "git", "gpt_neo", "gptj"})
"""Families whose layers ignore the registry of attention functions."""
_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "intermediate_size": ("n_inner", "ffn_dim"),
    "vocab_size": (),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
}
"""Other names of each size in transformers' configurations."""
