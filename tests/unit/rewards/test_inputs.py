"""Rewards get what their parameters name, in the processes of a run."""

from pathlib import Path

import pytest

from mindrl.batch.prompts import Prompt, PromptRow
from mindrl.config.rl import RLConfig
from mindrl.errors import ConfigError
from mindrl.rewards.inputs import Answered, RewardInputs
from mindrl.rewards.scorer import RewardScorer
from mindrl.rewards.scores import Scores, shown_names

FILE = str(Path(__file__).with_name("own_rewards.py"))
CHAT = ({"role": "system", "content": "Add."}, {"role": "user", "content": "3+4"})
PROMPTS = [
    Prompt(
        uid=level,
        token_ids=(5,) * level,
        text=f"<user>3+4 at level {level}",
        answer="7",
        source="sums",
        row=PromptRow(columns={"level": level}, messages=CHAT, is_chat=True),
    )
    for level in (2, 3)
]
RESPONSES = ["7", "7", "seven", "7"]
"""Two to each prompt."""


def scored(
    *functions: str,
    responses: list[str] = RESPONSES,
    kwargs: dict[str, dict[str, object]] | None = None,
    seconds: float = 20.0,
) -> Scores:
    names = tuple(f"{FILE}:{each}" for each in functions)
    rl = RLConfig(
        mini_batch_size=1,
        verifier_function=names,
        verifier_weight=(1.0,) * len(names),
        verifier_timeout=seconds,
    )
    given = {f"{FILE}:{name}": each for name, each in (kwargs or {}).items()}
    each = len(responses) // 2
    answered = Answered(
        prompts=[PROMPTS[0]] * each + [PROMPTS[1]] * each,
        groups=[0] * each + [1] * each,
        token_ids=[[9] * len(response) for response in responses],
    )
    with RewardScorer(rl, inputs=RewardInputs(kwargs=given, columns=("level",))) as scorer:
        return scorer.score(responses, ["7"] * len(responses), (), answered)


def part(scores: Scores, function: str) -> tuple[float | None, ...]:
    return scores.components[f"{FILE}:{function}"]


def test_a_function_gets_columns_chat_group_and_tokens_by_name() -> None:
    scores = scored("times", "of_the_chat", "rare", "tokens", "Near", kwargs={"Near": {"limit": 1}})
    assert scores.failures == ()
    assert part(scores, "times") == (2.0, 2.0, 15.0, 3.0)
    assert part(scores, "of_the_chat") == (2.1, 2.1, 2.5, 2.1)
    assert part(scores, "rare") == (0.5, 0.5, 1.0, 1.0)
    assert part(scores, "tokens") == (21.0, 21.0, 35.0, 31.0)
    assert part(scores, "Near") == (1.0, 1.0, 0.0, 1.0)
    assert scores.ranges[f"{FILE}:Near"] == (0.0, 2.0)


def test_arguments_of_a_function_come_from_the_configuration() -> None:
    scores = scored("times", kwargs={"times": {"factor": 0.5}})
    assert scores.rewards == (1.0, 1.0, 7.5, 1.5)


def test_a_function_of_lists_may_say_that_it_does_not_apply() -> None:
    scores = scored("lists", "times")
    assert part(scores, "lists") == (1.0, 1.0, None, None)
    assert scores.rewards == (3.0, 3.0, 15.0, 3.0)
    assert scores.metrics()["reward/lists"] == 1.0
    # What measures accuracy and does not apply has not said that it is right.
    assert scores.shares(f"{FILE}:lists") == [1.0, 1.0, 0.0, 0.0]
    assert scores.scored_counts[f"{FILE}:lists"] == 2


def test_asynchronous_calls_are_under_way_together_up_to_their_bound() -> None:
    scores = scored("judge", "judged", responses=["a"] * 8)
    assert part(scores, "judge")[0] == 4.0
    assert max(each or 0.0 for each in part(scores, "judge")) == 4.0
    assert part(scores, "judged") == (3.0,) * 4 + (4.0,) * 4


def test_an_asynchronous_call_that_never_ends_costs_itself_alone() -> None:
    scores = scored("judge", responses=["a", "late", "a", "a"], seconds=1.0)
    assert [each.kind for each in scores.failures] == ["timeout"]
    assert scores.failures[0].count == 1


def test_where_a_call_with_a_list_fails_its_responses_are_asked_of_one_by_one() -> None:
    scores = scored("spoils_lists", responses=["good", "bad", "good", "good"])
    assert part(scores, "spoils_lists") == (1.0, 0.0, 1.0, 1.0)
    assert [each.count for each in scores.failures] == [1]


def test_a_list_of_another_length_is_a_failure_that_says_so() -> None:
    [failure] = scored("too_short").failures
    assert failure.count == 4
    assert "returned 0 scores; need 1, one for each response" in failure.first.detail


def test_a_list_of_another_length_costs_only_those_that_have_no_score_by_themselves() -> None:
    scores = scored("of_the_even", responses=["a", "bb", "ccc", "dd"])
    assert part(scores, "of_the_even") == (0.0, 1.0, 0.0, 1.0)
    [failure] = scores.failures
    assert (failure.kind, failure.count) == ("value", 2)


def test_of_a_list_what_is_no_number_fails_alone() -> None:
    scores = scored("half_said")
    assert part(scores, "half_said") == (0.5, 0.0, 0.5, 0.0)
    assert [(each.kind, each.count) for each in scores.failures] == [("value", 2)]


def test_an_argument_that_a_function_does_not_take_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"verifier_kwargs of .*:times: {'factr': 2}"):
        scored("times", kwargs={"times": {"factr": 2}})


def test_a_class_that_cannot_be_made_says_why() -> None:
    with pytest.raises(ConfigError, match="missing a required argument: 'limit'"):
        scored("Near")


def test_metrics_name_functions_and_what_has_the_same_name_is_told_apart() -> None:
    names = ["math_verify", "rewards/brevity.py:score", "my.rewards:score", "a/own.py:mean"]
    assert shown_names([*names, "x/y.py:short", "http://localhost:8000/rate"]) == {
        "math_verify": "math_verify",
        "rewards/brevity.py:score": "brevity.score",
        "my.rewards:score": "rewards.score",
        "a/own.py:mean": "own.mean",
        "x/y.py:short": "short",
        "http://localhost:8000/rate": "http://localhost:8000/rate",
    }
    assert shown_names(["a/own.py:score", "b/own.py:score"]) == {
        "a/own.py:score": "a/own.py:score",
        "b/own.py:score": "b/own.py:score",
    }
