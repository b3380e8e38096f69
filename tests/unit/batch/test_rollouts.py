"""How prompts and responses become one padded batch."""

import pytest
import torch

from mindrl.batch.rollouts import Response, Rollouts

PROMPTS = [(5, 6, 7), (5, 6, 7), (8,)]
RESPONSES = [
    Response(token_ids=(11, 12), logprobs=(-0.5, -1.5), finished=True),
    Response(token_ids=(13,), logprobs=(-2.0,), finished=True),
    Response(token_ids=(14, 15, 16), logprobs=(-0.25, 0.0, -3.0), finished=False),
]


def rollouts() -> Rollouts:
    return Rollouts.from_responses(PROMPTS, RESPONSES, [0, 0, 1])


def test_a_sequence_is_its_prompt_then_its_response_then_zeros() -> None:
    assert rollouts().tokens_BT.tolist() == [
        [5, 6, 7, 11, 12],
        [5, 6, 7, 13, 0],
        [8, 14, 15, 16, 0],
    ]
    assert rollouts().lengths_B.tolist() == [5, 4, 4]


def test_mask_and_logprobs_stand_where_the_response_stands() -> None:
    assert rollouts().response_mask_BT.int().tolist() == [
        [0, 0, 0, 1, 1],
        [0, 0, 0, 1, 0],
        [0, 1, 1, 1, 0],
    ]
    assert rollouts().rollout_logprobs_BT.tolist() == [
        [0.0, 0.0, 0.0, -0.5, -1.5],
        [0.0, 0.0, 0.0, -2.0, 0.0],
        [0.0, -0.25, 0.0, -3.0, 0.0],
    ]


def test_types_are_those_that_the_class_promises() -> None:
    batch = rollouts()
    assert batch.tokens_BT.dtype == batch.lengths_B.dtype == batch.group_B.dtype == torch.int64
    assert batch.response_mask_BT.dtype == batch.finished_B.dtype == torch.bool
    assert batch.rollout_logprobs_BT.dtype == torch.float32


def test_the_response_comes_back_token_by_token() -> None:
    assert [rollouts().response_tokens(row) for row in range(3)] == [
        [11, 12],
        [13],
        [14, 15, 16],
    ]


def test_metrics_count_six_tokens_in_three_responses_of_which_one_was_cut() -> None:
    assert rollouts().metrics() == pytest.approx(
        {
            "rollout/response_tokens": 6.0,
            "rollout/response_length_mean": 2.0,
            "rollout/response_length_max": 3.0,
            "rollout/cut_fraction": 1 / 3,
        }
    )


def test_a_response_that_stops_at_once_is_an_empty_row_of_the_mask() -> None:
    empty = Response(token_ids=(), logprobs=(), finished=True)
    batch = Rollouts.from_responses([(5, 6), (7,)], [empty, RESPONSES[0]], [0, 1])
    assert batch.response_mask_BT.sum(1).tolist() == [0, 2]
    assert batch.response_tokens(0) == []


@pytest.mark.parametrize("logprobs", [(), (-0.5,), (-0.5, -0.5, -0.5)])
def test_a_response_without_one_logprob_for_each_token_is_refused(
    logprobs: tuple[float, ...],
) -> None:
    with pytest.raises(AssertionError, match="one log-prob for each token"):
        Response(token_ids=(11, 12), logprobs=logprobs, finished=True)


def test_prompts_and_responses_of_unequal_number_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Rollouts.from_responses(PROMPTS, RESPONSES[:2], [0, 0, 1])
