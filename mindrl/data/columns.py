"""Columns of a data set that hold prompt, answer and source."""

from dataclasses import dataclass

from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.data.rows import Row


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns; a dot separates a nested column from its parent."""

    prompt: str
    answer: str | None
    """None if rows have no reference answer."""
    source: str | None = None
    """Column of the `data_source`, if the format of the rows defines it."""
    note: str = ""
    """Note about columns that were not configured."""


def columns_of(training: MegatronTrainingConfig, first: Row) -> Columns:
    """Return the configured columns, or verl's if the keys are unset and rows have verl's form."""
    named = (training.prompt_column, training.answer_column)
    unset = (MegatronTrainingConfig.prompt_column, MegatronTrainingConfig.answer_column)
    inside = first.values.get("reward_model")
    is_verl = "prompt" in first.values and isinstance(inside, dict) and "ground_truth" in inside
    if named != unset or training.prompt_column in first.values or not is_verl:
        return Columns(prompt=training.prompt_column, answer=training.answer_column)
    return Columns(
        prompt="prompt",
        answer="reward_model.ground_truth",
        source="data_source" if "data_source" in first.values else None,
        note=", verl's row format",
    )
