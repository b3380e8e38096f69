"""Comparison of a step's numbers with its replay: one different bit is reported."""

import math

import pytest
import torch
from memory_roles import PROMPTS

from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.observability.metrics import computed
from mindrl.trainer.comparison import compare_metrics, compare_rollouts

LOGPROB = torch.tensor(-1 / 3).item()
NEXT = torch.nextafter(torch.tensor(-1 / 3), torch.tensor(0.0)).item()


def rollouts(
    last: tuple[int, ...] = (30, 31), logprobs: tuple[float, ...] = (-2.0, LOGPROB)
) -> Rollouts:
    """Two responses to a prompt of two tokens; the second one is as asked for."""
    responses = Responses.of([[20], last], [[-1.0], logprobs], [True, True])
    return Rollouts.from_responses([PROMPTS[0].token_ids], responses, [0, 0])


def test_equal_metrics_are_counted_and_nothing_is_named() -> None:
    values = {"a": 0.1, "b": None, "c": 3.0}
    found = compare_metrics(values, dict(reversed(values.items())))
    assert (found.count, found.differences) == (3, ())


@pytest.mark.parametrize(
    ("recorded", "replayed"),
    [(0.1, 0.1 + 2**-56), (0.0, -0.0), (1.0, None), (None, 1.0)],
)
def test_one_bit_a_sign_and_what_is_there_on_one_side_only_are_differences(
    recorded: float | None, replayed: float | None
) -> None:
    found = compare_metrics({"a": 1.0, "b": recorded}, {"a": 1.0, "b": replayed})
    assert [(each.name, each.recorded, each.replayed) for each in found.differences] == [
        ("b", recorded, replayed)
    ]


def test_a_metric_that_only_the_replay_has_is_named_behind_the_others() -> None:
    found = compare_metrics({"a": 1.0}, {"new": 2.0, "a": 2.0})
    assert [(each.name, each.recorded) for each in found.differences] == [("a", 1.0), ("new", None)]
    assert found.count == 2


def test_what_says_how_a_step_was_carried_out_is_not_compared() -> None:
    names = ("seconds/step", "bytes/reshard_sent", "memory/rss_bytes_max", "update/lr")
    assert computed(dict.fromkeys((*names, "throughput/tokens"), 1.0)) == {"update/lr": 1.0}


def test_equal_rollouts_are_counted_by_tokens_and_log_probs() -> None:
    """Their number, 4 tokens of prompts, 3 of responses, and as many log-probs."""
    found = compare_rollouts(rollouts(), rollouts())
    assert (found.count, found.differences) == (1 + 4 + 3 + 3, ())


@pytest.mark.parametrize(
    ("replayed", "named"),
    [
        (rollouts((30, 32)), [("token 3 of response 1", 31, 32)]),
        (rollouts(logprobs=(-2.0, NEXT)), [("log-prob 3 of response 1", LOGPROB, NEXT)]),
        (rollouts(logprobs=(-2.5, NEXT)), [("log-prob 2 of response 1", -2.0, -2.5)]),
        (
            rollouts((30,), (-2.0,)),
            [("token 3 of response 1", 31, None), ("log-prob 3 of response 1", LOGPROB, None)],
        ),
        (rollouts().rows(torch.tensor([0])), [("number of responses", 2.0, 1.0)]),
    ],
)
def test_the_first_token_and_log_prob_of_a_response_that_differ_are_named(
    replayed: Rollouts, named: list[tuple[str, float, float | None]]
) -> None:
    found = compare_rollouts(rollouts(), replayed)
    assert [(each.name, each.recorded, each.replayed) for each in found.differences] == named
    assert math.isclose(LOGPROB, NEXT, rel_tol=1e-6)
