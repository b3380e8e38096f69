"""Rewards in the forms that TRL's GRPOTrainer takes, unchanged."""

# ruff: noqa: ARG001 - the forms are theirs

import asyncio
import re
from typing import Any


def near_20(completions: list[str], **kwargs: Any) -> list[float]:
    """Take plain text: the prompts of the data are no chats."""
    return [-abs(20.0 - len(completion)) for completion in completions]


def tagged(completions: list[list[dict[str, str]]], **kwargs: Any) -> list[float]:
    """Take chats: a completion is a list with one message."""
    contents = [completion[0]["content"] for completion in completions]
    return [float(re.search(r"<answer>.*</answer>", each) is not None) for each in contents]


def boxed(completions: list[str], solution: list[str], **kwargs: Any) -> list[float]:
    """Take a column of the rows."""
    found = [re.findall(r"\\boxed{(.*?)}", completion) for completion in completions]
    return [float(each[-1:] == [right]) for each, right in zip(found, solution, strict=True)]


def of_sums(
    prompts: list[str], completions: list[str], task: list[str], **kwargs: Any
) -> list[float | None]:
    """Rate one task of two, and say nothing of the other."""
    rows = zip(prompts, completions, task, strict=True)
    return [
        float(text.count("+") == prompt.count("+")) if kind == "sum" else None
        for prompt, text, kind in rows
    ]


async def slow_judge(
    prompts: list[str], completions: list[str], completion_ids: list[list[int]], **kwargs: Any
) -> list[float]:
    await asyncio.sleep(0.01)
    assert len(prompts) == len(completions) == len(kwargs["task"])
    return [float(len(ids)) for ids in completion_ids]


def get_soft_overlong_punishment(max_completion_len: int, soft_punish_cache: int) -> Any:
    """Make a reward, as the factory of this name in trl.rewards does."""

    def soft_overlong_punishment_reward(
        completion_ids: list[list[int]], **kwargs: Any
    ) -> list[float]:
        rewards = []
        for ids in completion_ids:
            length = len(ids)
            if length <= max_completion_len - soft_punish_cache:
                rewards.append(0.0)
            elif length <= max_completion_len:
                rewards.append(
                    (max_completion_len - soft_punish_cache - length) / soft_punish_cache
                )
            else:
                rewards.append(-1.0)
        return rewards

    return soft_overlong_punishment_reward
