"""Reward functions that take more than two texts."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Number:
    """A number without a dimension, as numpy's and torch's are."""

    ndim = 0

    def __init__(self, value: float) -> None:
        self.value = value

    def item(self) -> float:
        return self.value


@dataclass
class Near:
    """1.0 for a response of at most so many characters."""

    limit: int
    score_range = (0.0, 2.0)

    def __call__(self, response: str) -> float:
        return float(len(response) <= self.limit)


def times(response: str, level: int, factor: float = 1.0) -> float:
    return len(response) * level * factor


def of_the_chat(response: str, prompt: str, messages: list[dict[str, str]]) -> Number:
    assert messages[-1]["content"] in prompt
    return Number(len(messages) + len(response) / 10)


def rare(response: str, group_responses: tuple[str, ...]) -> float:
    return 1 / group_responses.count(response)


def tokens(token_ids: list[int], prompt_token_ids: tuple[int, ...]) -> float:
    return len(token_ids) + 10 * len(prompt_token_ids)


def lists(responses: list[str], references: list[str], level: list[int]) -> list[float | None]:
    """Say nothing of level 3."""
    rows = zip(responses, references, level, strict=True)
    return [None if n == 3 else float(a == b) for a, b, n in rows]


under_way = 0


async def judge(response: str, reference: str) -> float:
    """Return how many calls are under way, itself counted; 'late' never ends."""
    global under_way  # noqa: PLW0603
    under_way += 1
    try:
        await asyncio.sleep(1000 if response == "late" else 0.1)
        return float(under_way) + 0 * len(reference)
    finally:
        under_way -= 1


judge.concurrency = 4  # type: ignore[attr-defined]


async def judged(responses: Sequence[str], **columns: Any) -> list[float]:
    await asyncio.sleep(0)
    return [len(response) + n for response, n in zip(responses, columns["level"], strict=True)]


def spoils_lists(responses: list[str]) -> list[float]:
    if "bad" in responses:
        raise ValueError("bad")
    return [1.0 for _ in responses]


def too_short(responses: list[str]) -> list[float]:
    return [1.0 for _ in responses][1:]


def half_said(responses: list[str]) -> list[object]:
    return [(0.5, "0.5")[place % 2] for place, _ in enumerate(responses)]


def of_the_even(responses: list[str]) -> list[float]:
    """Leave texts of odd length out of the list."""
    return [1.0 for response in responses if len(response) % 2 == 0]
