"""What no engine can have drawn, by its first fault."""

from typing import Any

import pytest
import torch

from mindrl.batch.rollouts import Responses
from mindrl.config.generate import SamplingConfig
from mindrl.rollout.engine import Sampling
from mindrl.rollout.response_checks import CERTAIN_TOKENS, CertainRow, response_error

# Two responses to requests for up to 3 tokens; of a vocabulary of 10.
SOUND: dict[str, Any] = {
    "token_ids": [[4, 1], [5, 6, 7]],
    "logprobs": [[-1.0, -0.5], [-2.0, -3.0, 0.0]],
    "finished": [True, False],
}


def found(*, whole: bool = True, most: tuple[int, ...] = (3, 3), **fields: Any) -> str:
    responses = Responses.of(**SOUND | fields)
    return response_error(responses, most, 10, are_complete=whole)


def test_sound_responses_have_no_fault_whole_or_not() -> None:
    assert found() == ""
    assert (
        found(token_ids=[[], [5]], logprobs=[[], [-1.0]], finished=[False] * 2, whole=False) == ""
    )
    assert response_error(Responses.of([], [], []), [], 10, are_complete=True) == ""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"most": (3,)}, "2 responses to 1 requests"),
        ({"most": (3, 2)}, "3 tokens, but the limit was 2"),
        ({"most": (3, 4)}, "a response was cut off at 3 of 4 tokens"),
        ({"token_ids": [[4, 1], [5, 10, 7]]}, "token 10 is outside the vocabulary of 10"),
        ({"token_ids": [[], [5, 6, 7]], "logprobs": [[], [-1.0] * 3]}, "a response is empty"),
        ({"logprobs": [[-1.0, float("nan")], [-1.0] * 3]}, "a log-prob is nan"),
        ({"logprobs": [[-1.0, 0.25], [-1.0] * 3]}, "a log-prob is 0.25, above 0"),
        (
            {"logprobs": [[-1.0, -1e30], [-1.0] * 3]},
            "a log-prob is -1e+30: the probability of that token is 0",
        ),
    ],
)
def test_each_fault_is_said(fields: dict[str, Any], said: str) -> None:
    assert found(**fields) == said


def test_the_least_likely_token_that_a_sampler_can_draw_is_sound() -> None:
    # In float32 the smallest probability is e^-103.3, in float64 e^-744.4.
    assert found(logprobs=[[-1.0, -103.3], [-744.4, -3.0, 0.0]]) == ""


def row(*responses: tuple[float, ...], greedy: bool = False, **section: Any) -> str:
    """Return what is said of responses one behind the other."""
    certain = CertainRow()
    sampling = Sampling(section=SamplingConfig(**section), stop_token_ids=(), is_greedy=greedy)
    return next(filter(None, (certain.add(each, sampling) for each in responses)), "")


CERTAIN = (0.0,) * (CERTAIN_TOKENS // 8)


def test_a_long_row_of_certain_tokens_is_drawn_by_no_engine() -> None:
    said = "the log-probs of 512 tokens in a row are 0 at temperature 1"
    assert row(*[CERTAIN] * 8).startswith(said)
    assert row(*[(-1e-9,) * 8] * 64).startswith(said)
    assert row(*[CERTAIN] * 7) == ""


def test_a_response_that_repeats_itself_is_no_row_of_its_own() -> None:
    assert row((0.0,) * 20_000) == ""
    assert row((0.0,) * 20_000, *[CERTAIN] * 7) != ""


def test_one_token_that_is_not_certain_begins_the_row_anew() -> None:
    # What float32 has closest to 0 of a log-softmax; in one of four responses.
    assert row(*[CERTAIN, CERTAIN, (*CERTAIN, -5.96e-8), CERTAIN] * 4) == ""


def test_where_an_engine_may_be_certain_of_all_tokens_none_is_judged() -> None:
    many = [CERTAIN] * 8
    assert row(*many, top_k=1) == ""
    assert row(*many, top_p=0.1) == ""
    assert row(*many, min_p=1.0) == ""
    assert row(*many, temperature=0.01) == ""
    assert row(*[()] * 999, greedy=True) == ""


def test_a_sharp_policy_is_not_taken_for_one_that_is_certain() -> None:
    # 95 % of its tokens lead by 20 nats, which float32 rounds to certainty; the others by 2.
    generator = torch.Generator().manual_seed(0)
    lead_N = torch.where(torch.rand(20_000, generator=generator) < 0.95, 20.0, 2.0)
    logits_NV = torch.zeros(20_000, 16)
    logits_NV[:, 0] = lead_N
    logprobs_N = logits_NV.log_softmax(dim=1)[:, 0]
    assert (logprobs_N == 0).float().mean() > 0.9
    assert row(*map(tuple, logprobs_N.split(20))) == ""
