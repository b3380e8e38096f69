"""Conversations of several sequences count as one response each."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mindrl.algorithms.advantages import gae_advantages
from mindrl.algorithms.estimators import RatedResponses, estimated, group_norm
from mindrl.batch.experience import Experience, Minibatch
from mindrl.batch.segments import Conversations
from mindrl.config.rl import RLConfig
from mindrl.trainer.minibatches import MinibatchDealer

MASK = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 1, 0, 1, 1], [0, 1, 1, 1, 1]]).bool()
"""Three sequences of one conversation, and one of another."""
TALKS = Conversations(MASK, torch.tensor([7, 7, 7, 3]))


def test_tokens_of_a_conversation_follow_each_other() -> None:
    values_BT = torch.arange(20.0).view(4, 5)
    assert TALKS.mask().tolist() == [[True] * 6, [True] * 4 + [False] * 2]
    joined_CL = TALKS.joined(values_BT)
    assert joined_CL.tolist() == [[1, 2, 8, 11, 13, 14], [16, 17, 18, 19, 0, 0]]
    assert TALKS.spread(joined_CL).equal(values_BT * MASK)
    assert TALKS.last(torch.arange(4)).tolist() == [2, 3]
    assert TALKS.index().tolist() == [0, 0, 0, 1]


@given(st.lists(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1), min_size=1))
def test_what_is_spread_is_what_was_joined(rows: list[list[list[bool]]]) -> None:
    mask_BT = torch.tensor([row for talk in rows for row in talk])
    numbers = [number for number, talk in enumerate(rows) for _ in talk]
    talks = Conversations(mask_BT, torch.tensor(numbers))
    values_BT = torch.arange(mask_BT.numel()).view(mask_BT.shape) + 1
    assert talks.spread(talks.joined(values_BT)).equal(values_BT * mask_BT)
    assert len(talks.rows()) == len(rows)


def test_three_sequences_weigh_as_one_conversation() -> None:
    rated = RatedResponses(
        rewards_B=torch.tensor([1.0, 0.0]),
        group_B=torch.tensor([0, 0]),
        mask_BT=TALKS.mask(),
    )
    advantages_BT = TALKS.spread(estimated(group_norm, rated).advantages_BT)
    # Over rows, the first would have 0.5 and the other -1.5.
    assert advantages_BT[MASK].tolist() == pytest.approx([0.70710] * 6 + [-0.70710] * 4, abs=1e-4)
    part = Experience(
        tokens_BT=torch.zeros(4, 5, dtype=torch.int64),
        lengths_B=torch.full((4,), 5),
        response_mask_BT=MASK,
        rollout_logprobs_BT=torch.zeros(4, 5),
        group_B=torch.zeros(4, dtype=torch.int64),
        finished_B=torch.ones(4, dtype=torch.bool),
        conversation_B=TALKS.conversation_B,
        old_logprobs_BT=torch.zeros(4, 5),
        advantages_BT=advantages_BT,
        ref_logprobs_BT=None,
    )
    weights_CB = []
    for each in (part, replace(part, conversation_B=None)):
        rl = RLConfig(mini_batch_size=1, loss_aggregation="sequence_mean")
        dealer = MinibatchDealer(rl, 0, longest=4)
        (minibatch,) = dealer.cut(each, dealer.deal(each.group_B), Minibatch)
        weights_CB.append(minibatch.token_weights_BT.sum(dim=1).tolist())
    assert weights_CB[0] == pytest.approx([1 / 6, 1 / 12, 1 / 4, 1 / 2])
    assert weights_CB[1] == pytest.approx([1 / 4] * 4)


def test_a_reward_reaches_earlier_sequences_as_in_one_long_sequence() -> None:
    torch.manual_seed(0)
    rewards_BT, values_BT = torch.rand(2, 4, 5)
    found_CL, _ = gae_advantages(
        TALKS.joined(rewards_BT), TALKS.joined(values_BT), TALKS.mask(), gamma=0.9, lam=0.8
    )
    long_mask_1T = MASK[:3].reshape(1, 15)
    expected_1T, _ = gae_advantages(
        rewards_BT[:3].reshape(1, 15),
        values_BT[:3].reshape(1, 15),
        long_mask_1T,
        gamma=0.9,
        lam=0.8,
    )
    assert torch.allclose(TALKS.spread(found_CL)[:3].reshape(1, 15), expected_1T, atol=1e-7)
