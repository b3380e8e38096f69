"""The keys of adapters of low rank, and the layers that may have them."""

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
"""Last names of layers as a Hugging Face folder has them; those of latent attention last."""
OF_MEGATRON: Mapping[str, tuple[str, ...]] = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}
"""Layers by Megatron's names, in which several of a Hugging Face folder are one."""
_ALL = "all-linear"


def _layers(value: Any) -> Any:
    """Take one name for a list of it, and PEFT's word for all layers as no name."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        return names
    return () if _ALL in names else tuple(names)


@dataclass(frozen=True, kw_only=True, config=SECTION)
class LoRAConfig:
    """Adapters of low rank (LoRA, arXiv 2106.09685): the weights stay, and small factors learn."""

    r: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    """Rank of the adapters. 0 has none: all weights learn."""
    alpha: Positive = 16.0
    """The product of the factors counts `alpha / r` times."""
    target_modules: Annotated[tuple[str, ...], BeforeValidator(_layers)] = ()
    """Last names of the layers that have adapters, as a Hugging Face folder names them: `q_proj`,
    `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`, `down_proj`; of latent attention
    `q_a_proj`, `q_b_proj`, `kv_a_proj_with_mqa`, `kv_b_proj`. Empty, or `all-linear` as PEFT has
    it, takes all of these that there are."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the inputs of adapters that an update drops; log-probs are read without."""
    load: PathText | None = None
    """Folder of a PEFT adapter to begin with, of the same rank and layers. None draws A, and B is
    zero: the model begins as it is."""
