"""Configuration of low-rank adapters, and the layers that may have them."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, PathText, Positive

LINEARS = (
    *("q_proj", "k_proj", "v_proj", "o_proj"),
    *("gate_proj", "up_proj", "down_proj"),
    *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
)
"""Last names of layers in a Hugging Face folder; those of latent attention are last."""
OF_MEGATRON: Mapping[str, tuple[str, ...]] = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Megatron's layer names; one may stand for several layers of a Hugging Face folder."""
_ALL = "all-linear"


def _layers(value: Any) -> Any:
    """Convert one name to a list, and PEFT's `all-linear` to an empty list."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        return names
    return () if _ALL in names else tuple(names)


@dataclass(frozen=True, kw_only=True, config=SECTION)
class LoRAConfig:
    """Low-rank adapters (LoRA, arXiv 2106.09685): frozen weights, small trained factors."""

    r: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    """Rank of the adapters. 0 disables them: all weights are trained."""
    alpha: Positive = 16.0
    """The product of the factors is scaled by `alpha / r`."""
    target_modules: Annotated[tuple[str, ...], BeforeValidator(_layers)] = ()
    """Last names of the layers with adapters, as in a Hugging Face folder: `q_proj`, `k_proj`,
    `v_proj`, `o_proj`, `gate_proj`, `up_proj`, `down_proj`; for latent attention `q_a_proj`,
    `q_b_proj`, `kv_a_proj_with_mqa`, `kv_b_proj`. Empty, or `all-linear` as in PEFT, selects all of
    these that exist."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout of the adapters' inputs in updates, with Megatron's engine; log-probs are computed
    without it."""
    load: PathText | None = None
    """Folder of a PEFT adapter to start from, with the same rank and layers. None initialises A at
    random and B with zeros: the model starts unchanged."""
