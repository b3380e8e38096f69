"""Rewards in the forms that verl's `custom_reward_function` takes, unchanged."""

# ruff: noqa: ARG001 - the forms are theirs

import re
from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None
) -> float:
    """Rate by the source of the row."""
    if data_source == "openai/gsm8k":
        found = re.findall(r"#### (-?[0-9.,]+)", solution_str)
        return float(bool(found) and found[-1].replace(",", "") == ground_truth)
    return float(ground_truth in solution_str)


def with_details(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]
) -> dict[str, Any]:
    """Return more than a score."""
    right = ground_truth in solution_str
    return {"score": float(right) + extra_info["index"], "acc": right, "from": data_source}


def graded(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    format_score: float = 0.0,
    **kwargs: Any,
) -> float:
    """Take arguments from `reward_kwargs`."""
    return 1.0 if ground_truth in solution_str else format_score


def compute_scores(
    data_sources: list[str],
    solution_strs: list[str],
    ground_truths: list[str],
    extra_infos: list[dict[str, Any]],
) -> list[float]:
    """Rate a batch."""
    rows = zip(data_sources, solution_strs, ground_truths, extra_infos, strict=True)
    return [
        len(source) * float(right in text) + info["index"] for source, text, right, info in rows
    ]
