"""Arguments of reward functions from a batch of responses, by parameter names."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mindrl.batch.prompts import ChatMessage, Prompt
from mindrl.config.reward_signature import COLUMN, COMPLETION, REFERENCE, RESPONSE
from mindrl.rewards.scores import ArgumentRows, NamedReward

_OF_PROMPT = {"prompt": "text", "prompt_token_ids": "token_ids", "data_source": "source"}


@dataclass(frozen=True, kw_only=True)
class RewardInputs:
    """Inputs of a run's functions besides the responses."""

    kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Configured arguments of each function."""
    columns: tuple[str, ...] = ()
    """Columns of the data rows."""
    answer_column: str = ""
    prints: Path | None = None
    """File for the output of functions; None discards it."""

    def named(self, name: str) -> NamedReward:
        """Return the description of a function for the reward service."""
        return NamedReward(
            name=name,
            kwargs=json.dumps(self.kwargs.get(name, {})),
            columns=self.columns,
            answer_column=self.answer_column,
        )


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Data about a batch of responses besides their texts; one entry for each."""

    prompts: Sequence[Prompt]
    groups: Sequence[int]
    """Index in the batch of the prompt that it answers."""
    token_ids: Sequence[Sequence[int]]


@dataclass(frozen=True)
class BatchTexts:
    """A batch of responses as input of functions."""

    responses: Sequence[str]
    answers: Sequence[str]
    answered: Answered | None

    def rows(self, rows: Iterable[int], fields: Sequence[str]) -> ArgumentRows:
        """Return the arguments for some responses; `fields` are their names in order."""
        columns = [self._column(name) for name in fields]
        return [tuple(column[row] for column in columns) for row in rows]

    def _column(self, name: str) -> Sequence[Any]:
        if name in (RESPONSE, REFERENCE):
            return self.responses if name == RESPONSE else self.answers
        answered = self.answered
        assert answered is not None, "callers that use more columns pass the whole batch"
        match name:
            case "token_ids":
                return answered.token_ids
            case "group_responses":
                return [self._groups[group] for group in answered.groups]
            case _ if name == COMPLETION:
                pairs = zip(self.responses, answered.prompts, strict=True)
                return [_completion(response, prompt) for response, prompt in pairs]
            case "messages" | "asked":
                # A list for each response, which a function may change.
                return [_of_prompt(prompt, name) for prompt in answered.prompts]
            case _:
                # Once for all responses to a prompt: it may be the content of a large file.
                by_prompt = {id(prompt): prompt for prompt in answered.prompts}
                values = {key: _of_prompt(prompt, name) for key, prompt in by_prompt.items()}
                return [values[id(prompt)] for prompt in answered.prompts]

    @cached_property
    def _groups(self) -> dict[int, tuple[str, ...]]:
        assert self.answered is not None
        found: dict[int, list[str]] = {}
        for group, response in zip(self.answered.groups, self.responses, strict=True):
            found.setdefault(group, []).append(response)
        return {group: tuple(each) for group, each in found.items()}


def _completion(response: str, prompt: Prompt) -> str | list[ChatMessage]:
    """Return a response as TRL does: as a message if the prompt consists of messages."""
    if prompt.row is None or not prompt.row.is_chat:
        return response
    return [{"role": "assistant", "content": response}]


def _of_prompt(prompt: Prompt, name: str) -> Any:
    row = prompt.row
    match name:
        case "prompt" | "prompt_token_ids" | "data_source":
            return getattr(prompt, _OF_PROMPT[name])
        case _ if row is None:
            return None
        case "messages":
            return [*row.messages]
        case "asked":  # TRL's `prompts`, as in the file
            return [*row.messages] if row.is_chat else row.messages[-1]["content"]
        case _:
            return row.columns.get(name.removeprefix(COLUMN))
