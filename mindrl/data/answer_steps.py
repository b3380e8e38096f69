"""Answers in steps, and where each step ends in the tokens."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from transformers import PreTrainedTokenizerBase

from mindrl.batch.prompts import Demonstration
from mindrl.config.preference import PreferenceConfig
from mindrl.data.rows import Row, column_of, shown
from mindrl.errors import DataError

_STEPS, _LABELS = "preference_config.steps_column", "preference_config.step_labels_column"


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerSteps:
    """The steps of one answer, with a label for each."""

    place: str
    """Its row, for messages."""
    steps: tuple[str, ...]
    separator: str
    labels: tuple[float, ...]
    """0 to 1; 1 for a right step."""

    @classmethod
    def of(cls, row: Row, section: PreferenceConfig) -> "AnswerSteps":
        """Read the steps of a row.

        Raises:
            DataError: A column has no list, a step is empty, or a label is not from 0 to 1.
        """
        steps = _list(row, section.steps_column, _STEPS, "texts, each with more than spaces", _text)
        need = "true, false, or numbers from 0 to 1"
        labels = _list(row, section.step_labels_column, _LABELS, need, _label)
        if len(labels) != len(steps):
            counts = f"{len(steps)} steps and {len(labels)} labels"
            raise DataError(f"{row.place} has {counts}; needed a label for each step")
        return cls(
            place=row.place,
            steps=tuple(steps),
            separator=section.step_separator,
            labels=tuple(map(float, labels)),
        )

    @property
    def text(self) -> str:
        """The whole answer."""
        return self.separator.join(self.steps)

    def targets(
        self, found: Demonstration, tokenizer: PreTrainedTokenizerBase, *, is_plain: bool
    ) -> tuple[bool, ...]:
        """Return for each token of the rendered answer whether it ends a step.

        Args:
            found: The conversation with the answer, whose end token ends the last step.
            tokenizer: The one that made its tokens.
            is_plain: Whether no template rendered it, so that the answer is tokenised alone.

        Raises:
            DataError: The tokens of a step cannot be found, or two steps end with the same one.
        """
        answer, first = (self.text, found.targets.index(True)) if is_plain else (found.text, 0)
        ends = [first + end for end in self._inner_ends(answer, found, tokenizer, first)]
        ends.append(found.last_target)
        if any(one >= other for one, other in pairwise(ends)):
            need = f"needed another preference_config.step_separator than {self.separator!r}"
            raise DataError(f"{self.place}: two steps end in the same token; {need}")
        return tuple(at in ends for at in range(len(found.targets)))

    def _inner_ends(
        self, text: str, found: Demonstration, tokenizer: PreTrainedTokenizerBase, first: int
    ) -> list[int]:
        """Return the last token of each step but the last, counted in the tokens of a text."""
        start = text.rfind(self.text)
        if start < 0:
            wrong = "the chat template changes the answer, so its steps cannot be found"
            raise DataError(f"{self.place}: {wrong}; needed one that keeps it")
        if not tokenizer.is_fast:
            name = type(tokenizer).__name__
            need = "needed a fast one, which reports positions"
            raise DataError(f"{self.place}: the tokenizer {name} is slow; {need}")
        read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = tuple(read["input_ids"])
        assert found.token_ids[first : first + len(ids)] == ids, "both come from this text"
        begins = [begin for begin, _ in read["offset_mapping"]]
        widths = [len(each) + len(self.separator) for each in self.steps[:-1]]
        lasts = (start + total - len(self.separator) for total in accumulate(widths))
        # The token that holds the last character of a step may begin the separator too.
        return [bisect_left(begins, last) - 1 for last in lasts]


def _list(row: Row, column: str, key: str, need: str, is_right: Callable[[Any], bool]) -> list[Any]:
    value: Any
    where, value = column_of(row, column, key)
    if not isinstance(value, list) or not value or not all(map(is_right, value)):
        raise DataError(f"{where} holds {shown(value)}; needed a list of {need}")
    return value


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _label(value: Any) -> bool:
    return isinstance(value, bool | int | float) and 0 <= value <= 1
