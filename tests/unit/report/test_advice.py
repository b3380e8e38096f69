"""Each rule on metrics that have its fault, and none on those of a healthy run."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mindrl.report.advice import RULES, WINDOW, Adviser

ROOT = Path(__file__).parents[3]
HEALTHY = {
    "seconds/step": 10.0,
    "seconds/reward": 0.5,
    "reward/mean": 0.5,
    "advantage/zero_fraction": 0.3,
    "update/entropy": 0.5,
    "update/clip_fraction": 0.01,
    "rollout/response_length_mean": 100.0,
    "rollout/response_tokens": 25600.0,
    "rollout/cut_fraction": 0.02,
    "logprob_gap/mean": 2e-7,
    "staleness/stale_tokens": 0.2,
    "mismatch/effective_sample_size": 0.99,
    "throughput/preemptions": 2.0,
    "throughput/idle_mean": 0.13,
    "throughput/idle_worst_worker": 1.0,
}
ILL: Mapping[str, Mapping[str, float]] = {
    "no_signal": {"advantage/zero_fraction": 0.95},
    "entropy_collapse": {"update/entropy": 0.05, "advantage/zero_fraction": 0.6},
    "length_hacking": {"rollout/response_length_mean": 160.0, "reward/mean": 0.8},
    "truncation": {"rollout/cut_fraction": 0.25},
    "gap_grows": {"logprob_gap/mean": 1e-3},
    "staleness": {"staleness/stale_tokens": 0.9, "mismatch/effective_sample_size": 0.4},
    "slow_worker": {"throughput/idle_mean": 0.3},
    "slow_rewards": {"seconds/reward": 4.0},
    "small_kv_cache": {"throughput/preemptions": 13.0},
    "clipping": {"update/clip_fraction": 0.4},
}
"""By rule: what the steps of the second half have."""


def advised(second_half: Mapping[str, float], *, accuracy_after: float = 0.4) -> list[str]:
    adviser = Adviser()
    adviser.observe({"step": 0, "evaluation/accuracy": 0.4})
    for step in range(4 * WINDOW):
        adviser.observe(HEALTHY | (second_half if step >= 2 * WINDOW else {}))
    adviser.observe({"step": 20, "evaluation/accuracy": accuracy_after})
    return [*adviser.given]


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_each_rule_finds_its_fault_and_no_other_does(rule: str) -> None:
    assert advised(ILL[rule]) == [rule]


def test_a_healthy_run_is_left_alone() -> None:
    assert advised({}) == []


def test_longer_answers_that_are_right_more_often_are_no_fault() -> None:
    assert advised(ILL["length_hacking"], accuracy_after=0.6) == []


def test_a_finding_is_told_once_with_its_evidence() -> None:
    adviser = Adviser()
    told = [adviser.observe(HEALTHY | ILL["truncation"]) for _ in range(3 * WINDOW)]
    (found,) = [each for step in told for each in step]
    assert told.index([found]) == WINDOW - 1
    assert found.evidence == "25% of the responses of the last 5 steps reached the maximum length"


def test_a_slow_worker_is_the_same_one_in_nine_of_ten_steps() -> None:
    slow = HEALTHY | {"throughput/idle_mean": 0.25}

    def found(worst: Sequence[int]) -> list[str]:
        adviser = Adviser()
        steps = [slow | {"throughput/idle_worst_worker": float(rank)} for rank in worst]
        return [each.evidence for step in steps for each in adviser.observe(step)]

    (evidence,) = found([700] * 4 + [3] + [700] * 5)
    assert evidence == (
        "worker 700 finished last in 9 of 10 steps: on average a worker waits for 25% of the "
        "generation time"
    )
    assert found([700] * 4 + [3, 3] + [700] * 4) == found([700] * 9) == []


def test_what_was_not_finite_is_not_there() -> None:
    adviser = Adviser()
    for _ in range(3 * WINDOW):
        assert adviser.observe(HEALTHY | {"update/entropy": None, "reward/mean": None}) == []


def test_each_key_that_is_to_change_is_a_key() -> None:
    reference = (ROOT / "docs" / "reference" / "config.md").read_text("utf-8")
    named = [name for rule in RULES for text in rule.change for name in _keys(text)]
    assert len(named) > 10
    assert [name for name in named if f"`{name}`" not in reference] == []


def _keys(text: str) -> list[str]:
    found = re.findall(r"\b(?!generation)\w+_config\.[\w.]+\w", text)
    return [key.rsplit(".", 1)[-1] for key in found]


def test_each_rule_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "how-to" / "watch-a-run.md").read_text("utf-8")
    assert [rule.title for rule in RULES if rule.title not in page] == []
