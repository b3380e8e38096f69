"""How prompts and responses become one padded batch."""

import pickle

import pytest
import torch

from mindrl.batch.rollouts import Responses, Rollouts

PROMPTS = [(5, 6, 7), (8,)]
TO_FIRST = Responses.of([(11, 12), (13,)], [(-0.5, -1.5), (-2.0,)], [True, True])
TO_SECOND = Responses.of([(14, 15, 16)], [(-0.25, 0.0, -3.0)], [False])
"""As two replicas answer; the first prompt is sampled twice."""


def rollouts() -> Rollouts:
    return Rollouts.from_responses(PROMPTS, Responses.joined([TO_FIRST, TO_SECOND]), [0, 0, 1])


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
    tokens = rollouts().response_tokens()
    assert [*tokens] == [
        [11, 12],
        [13],
        [14, 15, 16],
    ]
    assert (len(tokens), tokens[-1], tokens[1:]) == (3, [14, 15, 16], [[13], [14, 15, 16]])


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
    empty = Responses.of([(), (11, 12)], [(), (-0.5, -1.5)], [True, True])
    batch = Rollouts.from_responses([(5, 6), (7,)], empty, [0, 1])
    assert batch.response_mask_BT.sum(1).tolist() == [0, 2]
    assert batch.response_tokens()[0] == []


@pytest.mark.parametrize("logprobs", [(), (-0.5,), (-0.5, -0.5, -0.5)])
def test_a_response_without_one_logprob_for_each_token_is_refused(
    logprobs: tuple[float, ...],
) -> None:
    with pytest.raises(AssertionError, match="one log-prob for each token"):
        Responses.of([(11, 12)], [logprobs], [True])


@pytest.mark.parametrize("group", [[0], [0, 0, 1]])
def test_two_responses_to_another_number_of_prompts_are_refused(group: list[int]) -> None:
    with pytest.raises(AssertionError, match="each response answers a prompt"):
        Rollouts.from_responses(PROMPTS, TO_FIRST, group)


def test_a_replica_that_had_no_prompt_changes_nothing() -> None:
    nothing = Responses.of([], [], [])
    joined = Responses.joined([nothing, TO_SECOND, nothing])
    assert torch.equal(joined.token_ids_N, TO_SECOND.token_ids_N)
    assert joined.finished_B.tolist() == [False]


def test_a_response_travels_as_8_bytes_a_token_and_without_one_object_for_each() -> None:
    """4 for the token and 4 for its log-prob; 1 KiB more for names and lengths of two responses."""
    tokens = range(100_000, 100_000 + 4096)
    sent = pickle.dumps(Responses.of([tokens] * 2, [[-0.5] * 4096] * 2, [True, False]))
    assert 8 * 8192 < len(sent) < 8 * 8192 + 2048
