"""Section `sft_config`: supervised fine-tuning on answers in the data."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, Coefficient


@dataclass(frozen=True, kw_only=True, config=SECTION)
class SFTConfig:
    """Targets of a run of `cli/train_sft.py`."""

    response_column: str | None = None
    """Column of the answer, text, to the prompt in `megatron_training.prompt_column`; dots select
    nested columns. None: the prompt column is a whole conversation, which ends with an answer of
    the assistant."""
    turns: Literal["all", "last"] = "all"
    """Which answers of the assistant are targets: all of a conversation, or only the last."""
    answer_coef: Coefficient = 1.0
    """With a `teacher_config`: coefficient of the negative log-prob of the answer, which is added
    to the divergence from the teacher. 0 learns from the teacher alone."""
    epochs: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Passes over the rows: the run ends after them if that is before
    `megatron_training.train_iters`, and the learning rate decays until then. None: the run has
    `train_iters` steps, however many passes that is."""
