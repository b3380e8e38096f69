"""Which columns of a data set hold prompt, answer and source."""

from dataclasses import dataclass

from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.data.rows import Row


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns by what they hold, with dots where one lies in another."""

    prompt: str
    answer: str | None
    """None where rows have no reference answer."""
    source: str | None = None
    """Of the `data_source`, where the form of the rows says it."""
    told: str = ""
    """What is said of columns that no key names."""


def columns_of(training: MegatronTrainingConfig, first: Row) -> Columns:
    """Return the columns by the keys, or as verl has them where rows are its own and keys unset."""
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
        told=", rows as verl has them",
    )
