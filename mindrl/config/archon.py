"""Section `archon` of the roles that learn: what PyTorch's own engine alone is asked."""

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from mindrl.config.section import SECTION, Fraction, PositiveInt

Schedule = Literal["1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"]
"""The order of forward and backward passes in a pipeline, as PyTorch calls it."""
_WHOLE: Mapping[str, Schedule] = {
    **{name: name for name in get_args(Schedule)},
    "I1F1B": "Interleaved1F1B",
    "IZB": "InterleavedZeroBubble",
    "ZBV": "ZBVZeroBubble",
}
ZERO_BUBBLE: frozenset[Schedule] = frozenset({"InterleavedZeroBubble", "ZBVZeroBubble"})
"""Those that take the gradients of weights apart from those of activations (arXiv 2401.10241)."""


def _option(value: object) -> str:
    """Take a number as it is written too."""
    text = str(value)
    if text != "op" and not (text.isdecimal() and int(text)):
        raise PydanticCustomError("option", "must be op, or a number of layers of 1 or more")
    return text


@dataclass(frozen=True, kw_only=True, config=SECTION)
class ArchonConfig:
    """The engine of PyTorch alone, where `backend` is `archon:...` or `fsdp:...`."""

    pp_schedule: (
        Literal[
            "1F1B",
            "Interleaved1F1B",
            "InterleavedZeroBubble",
            "ZBVZeroBubble",
            "I1F1B",
            "IZB",
            "ZBV",
        ]
        | None
    ) = None
    """Order of the passes in a pipeline; the last three are short for the ones before. `1F1B` has
    one chunk of layers on each stage, `ZBVZeroBubble` two, that go through the stages and back, the
    others two or more: `virtual_pipeline_model_parallel_size`. None takes `1F1B` for one chunk and
    `Interleaved1F1B` for more."""
    enable_compile: bool = False
    """Compile each layer with torch.compile."""
    ac_mode: Literal["none", "full", "selective", "memory_budget"] = "none"
    """Activations that the backward pass makes again: none; all of each layer; some, by
    `selective_ac_option`; or those that the compiler chooses within `ac_memory_budget`."""
    selective_ac_option: Annotated[str, BeforeValidator(_option)] = "op"
    """With `selective`: `op` keeps the results of large products and of attention and recomputes
    the rest; a number N recomputes every N-th layer whole, and nothing in the others."""
    ac_memory_budget: Fraction = 0.5
    """With `memory_budget`: share of the activations that may be kept; 0 is as `full`, 1 as
    `none`."""
    ac_debug: bool = False
    """Compare shapes and types of what is made again with what was there, at some cost."""
    fsdp_size: PositiveInt | None = None
    """Neighbouring ranks of the same part of a model that share its weights, gradients and
    optimizer; the runs of so many ranks are copies of each other. None lets all of them share."""

    def schedule(self, chunks: int) -> Schedule:
        """Return the schedule by its whole name, of stages with so many chunks of layers."""
        return _WHOLE[self.pp_schedule or ("I1F1B" if chunks > 1 else "1F1B")]
