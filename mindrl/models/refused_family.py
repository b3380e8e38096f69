"""Families that no training engine of mindrl computes right, with the reasons. Imports no torch."""

from collections.abc import Iterator, Mapping
from typing import Any

_LACKS: Mapping[str, tuple[str, ...]] = {
    "gpt_oss": (
        "attention sinks (one trained number in the softmax of each head)",
        "layers with and without an attention window in turn (layer_types)",
        "experts with biases and clamped units (swiglu_limit)",
        "biases of the router and of the output projection (attention_bias)",
        "experts in MXFP4 (quantization_config)",
    ),
}
"""Feature of each family that every training engine lacks."""
_NEAREST: Mapping[str, tuple[str, ...]] = {"gpt_oss": ("qwen3_moe",)}
"""Families that all engines support, by refused family."""


def refused_family(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text if the family of a config.json is refused, with what it needs."""
    family = str(values.get("model_type"))
    if family in _LACKS:
        yield (
            f"model_type={family!r} is not supported by any training engine; they lack "
            f"{'; '.join(_LACKS[family])}. Nearest supported family: "
            f"{', '.join(_NEAREST[family])}"
        )
