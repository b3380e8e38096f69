"""Section `sft_config`: supervised fine-tuning, on answers that the rows have."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION


@dataclass(frozen=True, kw_only=True, config=SECTION)
class SFTConfig:
    """What a run of `cli/train_sft.py` learns from."""

    response_column: str | None = None
    """Column of the answer, text, to the prompt in `megatron_training.prompt_column`; dots lead
    into a column with columns of its own. None: that column is a whole conversation, which ends
    with an answer of the assistant."""
    turns: Literal["all", "last"] = "all"
    """Which answers of the assistant are learned: each of a conversation, or its last alone."""
    epochs: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Passes over the rows: the run ends with them where that is before
    `megatron_training.train_iters`, and the learning rate decays until then. None: it has
    `train_iters` steps, however many passes that is."""
