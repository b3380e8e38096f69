"""Convert rows to preferences: pairs of answers, or single answers with a label or a score."""

from collections.abc import Collection
from dataclasses import fields, replace
from math import isfinite
from typing import Any

from transformers import PreTrainedTokenizerBase

from mindrl.batch.prompts import (
    ChatMessage,
    Demonstration,
    GradedSteps,
    LabelledAnswer,
    PreferencePair,
    Prompt,
    ScoredAnswer,
)
from mindrl.config.data import DataPath
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.preference import PreferenceConfig
from mindrl.config.run import RunConfig
from mindrl.data.answer_steps import AnswerSteps
from mindrl.data.columns import Columns
from mindrl.data.demonstrations import Lesson, load_lessons
from mindrl.data.prompts import PromptSet, answer_of, conversation_of, question_of
from mindrl.data.reading import Reading
from mindrl.data.row_images import pictures_of
from mindrl.data.rows import Row, column_of, shown
from mindrl.errors import DataError
from mindrl.models.config_file import read_config

_LABELS = {True: True, False: False, "true": True, "false": False, "True": True, "False": False}


def load_preferences(
    paths: DataPath,
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    stop_token_ids: Collection[int],
    reading: Reading,
) -> PromptSet:
    """Read data files of TRL's form, and render each answer after its prompt.

    Raises:
        DataError: The file or one of its rows breaks the stated format, the answers of a pair are
            equal, or a conversation is too long and the policy is "error".
    """
    training, section = config.megatron_training, config.preference_config
    assert section is not None, "the run is trained on preferences"
    folder = config.actor_config.load
    padding = read_config(folder)[1].get("pad_token_id") if section.trains_rewards else None
    lesson = Lesson(
        tokenizer=tokenizer,
        stop_token_ids=stop_token_ids,
        turns="last",
        is_plain=training.takes_plain_text,
        images=reading.images,
    )

    def of_row(row: Row, columns: Columns, uid: int, source: str) -> Prompt:
        begun = _with_system(row, training, section.system_column)

        def shown_answer(column: str, key: str, row: Row = row) -> Demonstration:
            messages = _conversation(row, begun, columns.prompt, column, key)
            prompt = row.values.get(columns.prompt, row.values.get(column))
            kept = pictures_of(reading.images, row, messages, prompt)
            found = lesson.demonstration(messages, row.place, kept, uid=uid, source=source)
            if section.trains_rewards and found.token_ids[found.last_target] == padding:
                need = "transformers would read the score before it; set another token there"
                where = f"{row.place}: the answer ends with pad_token_id={padding} of {folder}"
                raise DataError(f"{where}/config.json; {need}")
            return found

        if section.loss == "steps":
            column, steps = section.steps_column, AnswerSteps.of(row, section)
            joined = row._replace(values=row.values | {column: steps.text})
            found = shown_answer(column, "preference_config.steps_column", joined)
            targets = steps.targets(found, tokenizer, is_plain=training.takes_plain_text)
            return GradedSteps(**_fields(found) | {"targets": targets}, labels=steps.labels)
        if section.sequences_per_row == 1:
            found = shown_answer(section.completion_column, "preference_config.completion_column")
            if section.loss == "kto":
                return LabelledAnswer(**_fields(found), is_desirable=_label_of(row, section))
            score = _number(row, section.score_column, "preference_config.score_column")
            return ScoredAnswer(**_fields(found), score=score)
        chosen = shown_answer(section.chosen_column, "preference_config.chosen_column")
        rejected = shown_answer(section.rejected_column, "preference_config.rejected_column")
        margin = 0.0
        if section.margin_column is not None:
            margin = _number(row, section.margin_column, "preference_config.margin_column")
        return _pair(chosen, rejected, margin, row.place)

    # A reward model reads the position after the last token.
    return load_lessons(paths, config, reading, of_row, spare=int(section.trains_rewards))


def _with_system(
    row: Row, training: MegatronTrainingConfig, column: str | None
) -> MegatronTrainingConfig:
    """Return the section with the system message of a row."""
    if column is None:
        return training
    value: Any
    where, value = column_of(row, column, "preference_config.system_column")
    if value is not None and not isinstance(value, str):
        raise DataError(f"{where} holds {shown(value)}; needed text, or null for no system message")
    return replace(training, system_prompt=value if value and value.strip() else None)


def _conversation(
    row: Row, training: MegatronTrainingConfig, prompt: str, column: str, key: str
) -> list[ChatMessage]:
    """Return an answer after its prompt; without a prompt column it is a whole conversation."""
    where, value = column_of(row, column, key)
    if isinstance(value, list) and prompt not in row.values:
        return conversation_of(row, training, column)
    asked = question_of(row, training, prompt)
    if not isinstance(value, list):
        return [*asked, {"role": "assistant", "content": answer_of(row, column, key)}]
    answers = conversation_of(row, replace(training, system_prompt=None), column)
    if len(answers) != 1:
        need = f"needed one message of the assistant after {prompt!r}"
        raise DataError(f"{where} holds {len(answers)} messages; {need}")
    return [*asked, *answers]


def _pair(
    chosen: Demonstration, rejected: Demonstration, margin: float, place: str
) -> PreferencePair:
    if chosen.token_ids == rejected.token_ids:
        need = "a pair needs two different answers; remove the row"
        raise DataError(f"{place}: the chosen and the rejected answer are equal; {need}")
    # The longer one must fit.
    longer = max(chosen, rejected, key=lambda each: len(each.token_ids))
    return PreferencePair(
        uid=chosen.uid,
        token_ids=longer.token_ids,
        text=chosen.text,
        answer="",
        source=chosen.source,
        images=chosen.images,
        chosen=chosen,
        rejected=rejected,
        margin=margin,
    )


def _fields(found: Demonstration) -> dict[str, Any]:
    return {each.name: getattr(found, each.name) for each in fields(found)}


def _number(row: Row, column: str, key: str) -> float:
    value: Any
    where, value = column_of(row, column, key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise DataError(f"{where} holds {shown(value)}; needed a finite number")
    return float(value)


def _label_of(row: Row, section: PreferenceConfig) -> bool:
    value: Any
    where, value = column_of(row, section.label_column, "preference_config.label_column")
    if not isinstance(value, bool | str) or value not in _LABELS:
        raise DataError(f"{where} holds {shown(value)}; needed true or false")
    return _LABELS[value]
