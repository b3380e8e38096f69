"""How far back a token of a model sees. Imports no torch.

The training engines let each token see all before it, which a window does too while no sequence is
longer than it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_DEFAULT = 4096
"""Of the families that have one where config.json leaves it out."""
_KINDS = {"full_attention", "sliding_attention"}


def attention_window(values: Mapping[str, Any]) -> Any:
    """Return the window of a config.json as it stands there; None where all tokens are seen."""
    family, has_switch = values["model_type"], values["model_type"].startswith("qwen")
    if has_switch and not values.get("use_sliding_window"):
        return None
    assumed = _DEFAULT if has_switch or family == "mistral" else None
    return values.get("sliding_window", assumed) or None


def unsupported_window(values: Mapping[str, Any]) -> Iterator[str]:
    """Name layers that are neither of the two kinds, or have a window of no size."""
    kinds = {*(values.get("layer_types") or ())}
    known = _KINDS if attention_window(values) is not None else {"full_attention"}
    for kind in sorted(kinds - known):
        yield f"layer_types with {kind!r} is not supported; only {' and '.join(sorted(known))}"
