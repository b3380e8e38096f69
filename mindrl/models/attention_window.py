"""Attention windows in config.json. Imports no torch.

The training engines use full causal attention, which equals a window as long as no sequence exceeds
it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_DEFAULT = 4096
"""Window of families that have one if config.json omits it."""
_KINDS = {"full_attention", "sliding_attention"}


def attention_window(values: Mapping[str, Any]) -> Any:
    """Return the window as config.json has it; None for full attention."""
    family, has_switch = values["model_type"], values["model_type"].startswith("qwen")
    if has_switch and not values.get("use_sliding_window"):
        return None
    assumed = _DEFAULT if has_switch or family == "mistral" else None
    return values.get("sliding_window", assumed) or None


def unsupported_window(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield layers of unknown kinds, and sliding layers without a window."""
    kinds = {*(values.get("layer_types") or ())}
    known = _KINDS if attention_window(values) is not None else {"full_attention"}
    for kind in sorted(kinds - known):
        yield f"layer_types with {kind!r} is not supported; only {' and '.join(sorted(known))}"
