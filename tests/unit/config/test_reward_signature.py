"""What a reward takes by the names of its parameters, without a call of it."""

# ruff: noqa: ARG005 - what counts is how they are called

import asyncio
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest

from mindrl.config.reward_signature import signature_of

COLUMNS = ("question", "answer", "level", "ground_truth", "extra_info")


class Near:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __call__(self, response: str, level: int) -> float:
        return float(len(response) < self.limit * level)


class Closed:
    pass


def limited(response: str, limit: int, level: int = 1) -> float:
    return float(len(response) < limit * level)


def bound(function: Callable[..., Any], *given: str) -> dict[str, str] | list[str]:
    found = signature_of(function, given).bound(COLUMNS, "answer")
    return dict(found) if all(name for name, _ in found) else [field for _, field in found]


@pytest.mark.parametrize(
    ("function", "takes"),
    [
        (lambda response, reference: 1, {"response": "response", "reference": "reference"}),
        (lambda r, a: 1, {"r": "response", "a": "reference"}),
        (lambda response, answer: 1, {"response": "response", "answer": "reference"}),
        (lambda response, level: 1, {"response": "response", "level": "column.level"}),
        (lambda response, strict=True: 1, {"response": "response"}),
        (lambda token_ids: 1, {"token_ids": "token_ids"}),
        (lambda *both: 1, ["response", "reference"]),
        (lambda r, a, /: 1, ["response", "reference"]),
        (
            lambda response, prompt, messages, group_responses: 1,
            {
                "response": "response",
                "prompt": "prompt",
                "messages": "messages",
                "group_responses": "group_responses",
            },
        ),
        (
            lambda responses, references, level: [1],
            {"responses": "response", "references": "reference", "level": "column.level"},
        ),
        (lambda responses, answer: [1], {"responses": "response", "answer": "column.answer"}),
        (Near(3), {"response": "response", "level": "column.level"}),
        (Near, {"response": "response", "level": "column.level"}),
        (partial(limited, limit=3), {"response": "response", "level": "column.level"}),
    ],
)
def test_each_parameter_takes_what_it_names(
    function: Callable[..., Any], takes: dict[str, str] | list[str]
) -> None:
    assert bound(function) == takes


def test_what_the_configuration_gives_is_asked_of_no_row() -> None:
    assert bound(limited, "limit") == {"response": "response", "level": "column.level"}
    assert bound(limited, "limit", "level") == {"response": "response"}


def test_functions_of_lists_and_asynchronous_ones_are_told_apart() -> None:
    async def judge(response: str, reference: str) -> float:
        return float(response == reference)

    async def judged(completions: list[str], **columns: object) -> list[float]:
        return [float(len(columns)) for _ in completions]

    @wraps(judge)
    def waits(*args: str) -> float:
        return asyncio.run(judge(*args))

    found = [signature_of(each) for each in (limited, judge, judged, partial(judge), waits)]
    assert [each.is_batch for each in found] == [False, False, True, False, False]
    assert [each.is_async for each in found] == [False, True, True, True, False]


def test_verls_parameters_are_bound_by_their_names() -> None:
    def compute_score(
        data_source: str, solution_str: str, ground_truth: str, extra_info: object = None
    ) -> float:
        return float(solution_str == ground_truth and bool(data_source) and extra_info is None)

    rows = signature_of(compute_score).bound(("extra_info",), "reward_model.ground_truth")
    assert dict(rows) == {
        "data_source": "data_source",
        "solution_str": "response",
        "ground_truth": "reference",
        "extra_info": "column.extra_info",
    }


def test_trls_parameters_and_keywords_are_bound_by_their_names() -> None:
    def reward(prompts: list[str], completions: list[str], level: list[int], **_: Any) -> list[int]:
        rows = zip(prompts, completions, level, strict=True)
        return [len(prompt) * len(each) * n for prompt, each, n in rows]

    assert bound(reward) == {
        "prompts": "asked",
        "completions": "completion",
        "completion_ids": "token_ids",
        **{name: f"column.{name}" for name in COLUMNS},
    }


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda prompt, reference: 1,
            ("has the signature (prompt, reference); need (response: str"),
        ),
        (lambda: 1, "has the signature (); need (response: str, reference: str) -> float, or"),
        (lambda text: 1, "has the signature (text); need"),
        (
            lambda response, reference, levels: 1,
            "has the parameter 'levels', which is not a column of the rows; did you mean 'level'?",
        ),
        (Closed, "is a class without __call__"),
    ],
)
def test_what_can_take_no_response_is_refused_in_words(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(ValueError, match=r"need|add") as caught:
        bound(function)
    assert str(caught.value).startswith(words)
