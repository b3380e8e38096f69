"""Rewards get what their parameters name, in the processes of a run."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mindrl.batch.prompts import Prompt, PromptRow
from mindrl.config.reward_signature import COLUMN
from mindrl.config.rl import RLConfig
from mindrl.errors import ConfigError
from mindrl.rewards.inputs import Answered, BatchTexts, RewardInputs
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


FUNCTIONS = {
    "by name": ("times", "of_the_chat", "rare", "tokens", "Near"),
    "lists": ("lists", "times"),
    "judges": ("judge", "judged"),
    **{name: (name,) for name in ("spoils_lists", "too_short", "of_the_even", "half_said")},
}
"""Of the cases that one scorer rates, each under a source of its own."""
Score = Callable[..., Scores]


@pytest.fixture(scope="module")
def score() -> Iterator[Score]:
    """Rate responses with the functions of a case."""
    weights = {
        source: {f"{FILE}:{name}": 1.0 for name in names} for source, names in FUNCTIONS.items()
    }
    with scorer_of("times", weights=weights, kwargs={"Near": {"limit": 1}}) as scorer:
        yield lambda source, responses=RESPONSES: rated(scorer, responses, source)


def scorer_of(
    function: str,
    *,
    weights: Mapping[str, Mapping[str, float]] | None = None,
    kwargs: Mapping[str, dict[str, object]] | None = None,
    seconds: float = 20.0,
) -> RewardScorer:
    name = f"{FILE}:{function}"
    rl = RLConfig(
        mini_batch_size=1,
        verifier_function=(name,),
        verifier_weight=(1.0,),
        verifier_timeout=seconds,
    )
    given = {f"{FILE}:{name}": each for name, each in (kwargs or {}).items()}
    of_all = {"": {name: 1.0}, **(weights or {})}
    return RewardScorer(rl, of_all, RewardInputs(kwargs=given, columns=("level",)))


def rated(scorer: RewardScorer, responses: list[str] = RESPONSES, source: str = "") -> Scores:
    each = len(responses) // 2
    answered = Answered(
        prompts=[PROMPTS[0]] * each + [PROMPTS[1]] * each,
        groups=[0] * each + [1] * each,
        token_ids=[[9] * len(response) for response in responses],
    )
    answers, sources = ["7"] * len(responses), [source] * len(responses)
    return scorer.score(responses, answers, sources, answered)


def part(scores: Scores, function: str) -> tuple[float | None, ...]:
    return scores.components[f"{FILE}:{function}"]


def test_a_function_gets_columns_chat_group_and_tokens_by_name(score: Score) -> None:
    scores = score("by name")
    assert scores.failures == ()
    assert part(scores, "times") == (2.0, 2.0, 15.0, 3.0)
    assert part(scores, "of_the_chat") == (2.1, 2.1, 2.5, 2.1)
    assert part(scores, "rare") == (0.5, 0.5, 1.0, 1.0)
    assert part(scores, "tokens") == (21.0, 21.0, 35.0, 31.0)
    assert part(scores, "Near") == (1.0, 1.0, 0.0, 1.0)
    assert scores.ranges[f"{FILE}:Near"] == (0.0, 2.0)


def test_arguments_of_a_function_come_from_the_configuration() -> None:
    with scorer_of("times", kwargs={"times": {"factor": 0.5}}) as scorer:
        assert rated(scorer).rewards == (1.0, 1.0, 7.5, 1.5)


def test_a_function_of_lists_may_say_that_it_does_not_apply(score: Score) -> None:
    scores = score("lists")
    assert part(scores, "lists") == (1.0, 1.0, None, None)
    assert scores.rewards == (3.0, 3.0, 15.0, 3.0)
    assert scores.metrics()["reward/lists"] == 1.0
    # What measures accuracy and does not apply has not said that it is right.
    assert scores.shares(f"{FILE}:lists") == [1.0, 1.0, 0.0, 0.0]
    assert scores.scored_counts[f"{FILE}:lists"] == 2


def test_asynchronous_calls_are_under_way_together_up_to_their_bound(score: Score) -> None:
    scores = score("judges", ["a"] * 8)
    assert part(scores, "judge")[0] == 4.0
    assert max(each or 0.0 for each in part(scores, "judge")) == 4.0
    assert part(scores, "judged") == (3.0,) * 4 + (4.0,) * 4


def test_an_asynchronous_call_that_never_ends_costs_itself_alone() -> None:
    with scorer_of("judge", seconds=1.0) as scorer:
        scores = rated(scorer, ["a", "late", "a", "a"])
    assert [each.kind for each in scores.failures] == ["timeout"]
    assert scores.failures[0].count == 1


def test_where_a_call_with_a_list_fails_its_responses_are_asked_of_one_by_one(score: Score) -> None:
    scores = score("spoils_lists", ["good", "bad", "good", "good"])
    assert part(scores, "spoils_lists") == (1.0, 0.0, 1.0, 1.0)
    assert [each.count for each in scores.failures] == [1]


def test_a_list_of_another_length_is_a_failure_that_says_so(score: Score) -> None:
    [failure] = score("too_short").failures
    assert failure.count == 4
    assert "returned 0 scores; need 1, one for each response" in failure.first.detail


def test_a_list_of_another_length_costs_only_those_that_have_no_score_by_themselves(
    score: Score,
) -> None:
    scores = score("of_the_even", ["a", "bb", "ccc", "dd"])
    assert part(scores, "of_the_even") == (0.0, 1.0, 0.0, 1.0)
    [failure] = scores.failures
    assert (failure.kind, failure.count) == ("value", 2)


def test_of_a_list_what_is_no_number_fails_alone(score: Score) -> None:
    scores = score("half_said")
    assert part(scores, "half_said") == (0.5, 0.0, 0.5, 0.0)
    assert [(each.kind, each.count) for each in scores.failures] == [("value", 2)]


def test_an_argument_that_a_function_does_not_take_is_refused() -> None:
    with (
        scorer_of("times", kwargs={"times": {"factr": 2}}) as scorer,
        pytest.raises(ConfigError, match=r"verifier_kwargs of .*:times: {'factr': 2}"),
    ):
        rated(scorer)


def test_a_class_that_cannot_be_made_says_why() -> None:
    with (
        scorer_of("Near") as scorer,
        pytest.raises(ConfigError, match="missing a required argument: 'limit'"),
    ):
        rated(scorer)


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


def test_a_column_is_looked_up_once_for_all_responses_to_a_prompt() -> None:
    """It may be the content of a picture, which is read from its file at each look."""
    looks: list[str] = []

    class Watched(dict[str, object]):
        def get(self, name: str, default: object = None) -> object:
            looks.append(name)
            return super().get(name, default)

    row = PromptRow(columns=Watched(image=b"large"), messages=CHAT, is_chat=True)
    prompts = [replace(PROMPTS[0], row=row)] * 3 + [PROMPTS[1]]
    answered = Answered(prompts=prompts, groups=[0, 0, 0, 1], token_ids=[()] * 4)
    texts = BatchTexts(RESPONSES, ["7"] * 4, answered)
    (first,), (second,), *_ = texts.rows(range(4), [f"{COLUMN}image"])
    assert first is second == b"large"
    assert looks == ["image"]
    # Messages are a list for each, which a function may change.
    (first,), (second,), *_ = texts.rows(range(4), ["messages"])
    assert first == second
    assert first is not second
