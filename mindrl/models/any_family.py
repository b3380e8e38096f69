"""What can be planned of a causal language model of any family: sizes, and the tensors it has.

By transformers' own names in config.json, and by the headers of the weight files. Imports no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mindrl.models.description import ModelDescription, described
from mindrl.models.other_family import OtherFamily
from mindrl.models.placement import Shape


def any_description(
    path: Path, values: Mapping[str, Any], tensors: Mapping[str, Shape]
) -> ModelDescription:
    """Describe a model by its config.json and by the shapes of what its files hold.

    What no plan asks of it, the epsilon of its norms and its rotary frequencies, is not described:
    they are 1 here.

    Raises:
        ModelError: A size is missing, or the model does what packs and plain heads cannot.
    """
    return described(path, partial(_sizes, tensors), values, _unsupported(values, tensors))


def _sizes(tensors: Mapping[str, Shape], values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model_type": values.get("model_type"),
        "rms_norm_eps": 1.0,
        "rope_theta": 1.0,
        "other": OtherFamily(
            architecture=values["architectures"][0], tensors=tuple(tensors.items())
        ),
    }
    for name, others in _NAMES.items():
        found[name] = _first(values, (name, *others))
    # What config.json leaves out is the family's own choice, which the files show.
    matrix = (found["vocab_size"], found["hidden_size"])
    found["tie_word_embeddings"] = list(tensors.values()).count(matrix) < 2
    heads, hidden = found["num_attention_heads"], found["hidden_size"]
    if isinstance(hidden, int) and isinstance(heads, int) and heads:
        width = values.get("head_dim")
        found["head_dim"] = hidden // heads if width is None else width
        found["intermediate_size"] = found["intermediate_size"] or 4 * hidden
        found["num_key_value_heads"] = found["num_key_value_heads"] or heads
    return {name: value for name, value in found.items() if value is not None}


def _unsupported(values: Mapping[str, Any], tensors: Mapping[str, Shape]) -> Iterator[str]:
    """Name what a network of transformers would do, and packs or a plain head do not."""
    classes = values.get("architectures")
    if not isinstance(classes, list) or len(classes) != 1:
        yield f"architectures={classes!r} must name one class"
    for name in _CHANGE_LOGITS:
        if values.get(name) not in (None, 0, 1):
            yield f"{name}={values[name]!r} is not supported: logits are made by the head alone"
    if values.get("quantization_config"):
        yield "quantized weights (quantization_config) are not supported"
    if values.get("is_encoder_decoder"):
        yield "is_encoder_decoder=true is not supported"
    yield from _unsupported_attention(values)
    for name, shape in tensors.items():
        if not shape:
            yield f"tensor {name} is a single number, which FSDP2 cannot deal out"


def _unsupported_attention(values: Mapping[str, Any]) -> Iterator[str]:
    if values.get("attn_logit_softcapping"):
        yield "attn_logit_softcapping is not supported"
    if values.get("sliding_window") is not None and values.get("use_sliding_window") is not False:
        yield f"sliding_window={values['sliding_window']!r} is not supported; only null"
    for kind in sorted(set(values.get("layer_types") or ()) - {"full_attention"}):
        yield f"layer_types with {kind!r} is not supported; only 'full_attention'"


def _first(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


_CHANGE_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_kv_heads",),
    "intermediate_size": ("n_inner", "ffn_dim"),
    "vocab_size": (),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
}
"""A size, and what else configurations of transformers call it."""
