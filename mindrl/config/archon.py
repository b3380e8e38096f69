"""Section `archon` of the trained roles: options of PyTorch's own engine."""

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from mindrl.config.section import SECTION, Fraction, PositiveInt

Schedule = Literal["1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"]
"""Schedule of forward and backward passes in a pipeline, under PyTorch's names."""
_WHOLE: Mapping[str, Schedule] = {
    **{name: name for name in get_args(Schedule)},
    "I1F1B": "Interleaved1F1B",
    "IZB": "InterleavedZeroBubble",
    "ZBV": "ZBVZeroBubble",
}
ZERO_BUBBLE: frozenset[Schedule] = frozenset({"InterleavedZeroBubble", "ZBVZeroBubble"})
"""Schedules that compute weight gradients separately from activation gradients (arXiv
2401.10241)."""


def _option(value: object) -> str:
    """Convert a number to its text, and check the option."""
    text = str(value)
    if text != "op" and not (text.isdecimal() and int(text)):
        raise PydanticCustomError("option", "must be op or a number of layers from 1")
    return text


@dataclass(frozen=True, kw_only=True, config=SECTION)
class ArchonConfig:
    """Options of PyTorch's own engine: `backend` is `archon:...` or `fsdp:...`."""

    pp_schedule: Literal[Schedule, "I1F1B", "IZB", "ZBV"] | None = None
    """Schedule of the passes in a pipeline; the last three are abbreviations. `1F1B` has one chunk
    of layers per stage; `ZBVZeroBubble` two, placed through the stages and back; the others two or
    more: `virtual_pipeline_model_parallel_size`. None uses `1F1B` for one chunk and
    `Interleaved1F1B` for more."""
    enable_compile: bool = False
    """Compile each layer with torch.compile."""
    ac_mode: Literal["none", "full", "selective", "memory_budget"] = "none"
    """Activations that the backward pass recomputes: none; all of each layer; some, by
    `selective_ac_option`; or those that the compiler selects within `ac_memory_budget`."""
    selective_ac_option: Annotated[str, BeforeValidator(_option)] = "op"
    """With `selective`: `op` keeps the results of large products and of attention, and recomputes
    the rest; a number n recomputes every n-th layer completely, and nothing of the others."""
    ac_memory_budget: Fraction = 0.5
    """With `memory_budget`: fraction of the activations that may be kept; 0 is like `full`, 1 like
    `none`."""
    ac_debug: bool = False
    """Compare shapes and types of recomputed activations with the original ones, at some cost."""
    fsdp_size: PositiveInt | None = None
    """Number of neighbouring ranks with the same part of a model that shard its weights, gradients
    and optimizer; further ranks hold replicas. None shards over all of them."""

    def schedule(self, chunks: int) -> Schedule:
        """Return the full name of the schedule for stages with `chunks` chunks of layers."""
        return _WHOLE[self.pp_schedule or ("I1F1B" if chunks > 1 else "1F1B")]
