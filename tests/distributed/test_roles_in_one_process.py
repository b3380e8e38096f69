"""Actor, critic and reference in the same four processes, each in a layout of its own."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from test_values import LOSS as VALUE_LOSS
from test_values import OPTIMIZER, sequences
from training_messages import LOSS, Case, Course
from value_messages import Cast, CriticCourse, Evening

from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import CriticMinibatch, Minibatch
from mindrl.layouts.layout import TrainLayout

pytestmark = [pytest.mark.distributed, pytest.mark.nightly]

UPDATES = 3


def cast(folder: str) -> Cast:
    """Give each role the same model, and a layout of four ranks that no other has."""
    batch = sequences()
    generator = torch.Generator().manual_seed(2)
    noise_4BT = torch.randn(4, *batch.tokens_BT.shape, generator=generator) * batch.response_mask_BT
    common: dict[str, Any] = {
        "tokens_BT": batch.tokens_BT,
        "lengths_B": batch.lengths_B,
        "response_mask_BT": batch.response_mask_BT,
        "token_weights_BT": token_mean_weights(batch.response_mask_BT),
    }
    # Log-probs of a random model of 211 tokens are near -5.
    near_5_BT = -5.0 * batch.response_mask_BT
    minibatch = Minibatch(
        **common,
        old_logprobs_BT=near_5_BT + noise_4BT[0],
        ref_logprobs_BT=near_5_BT + noise_4BT[1],
        advantages_BT=noise_4BT[2],
    )
    critic_minibatch = CriticMinibatch(
        **common, old_values_BT=noise_4BT[2], returns_BT=noise_4BT[3]
    )
    cut = MicroBatching(sequences=3)
    return Cast(
        actor=Case(folder=folder, layout=TrainLayout(tp=2, dp=2), sequence_parallel=True),
        critic=Case(folder=folder, layout=TrainLayout(pp=2, dp=2)),
        reference=Case(folder=folder, layout=TrainLayout(tp=4)),
        actor_course=Course(
            minibatches=[minibatch] * UPDATES, loss=LOSS, optimizer=OPTIMIZER, micro_batching=cut
        ),
        critic_course=CriticCourse(
            minibatches=[critic_minibatch] * UPDATES,
            loss=VALUE_LOSS,
            optimizer=OPTIMIZER,
            micro_batching=cut,
        ),
    )


@pytest.fixture(scope="module")
def evenings(forked_workers: ForkedWorkers, random_model_of: Callable[..., Path]) -> list[Evening]:
    folder = str(random_model_of("qwen3"))
    return forked_workers.run("value_probe:evening", cast(folder), sequences(), ranks=4)


def test_three_layouts_in_turns_give_what_each_gives_alone_to_the_bit(
    evenings: list[Evening],
) -> None:
    for evening in evenings:
        alone, together = evening.alone, evening.together
        assert together.actor_metrics == alone.actor_metrics
        assert together.critic_metrics == alone.critic_metrics
        assert len(alone.actor_metrics) == len(alone.critic_metrics) == UPDATES
        for name in ("logprobs", "ref_logprobs", "values"):
            _assert_equal(getattr(together, name), getattr(alone, name))


def _assert_equal(found: list[Any], expected: list[Any]) -> None:
    """Compare what a role said in each step; None where the rank has no last stage."""
    assert [said is None for said in found] == [said is None for said in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for field in fields(ours) if ours is not None else ():
            left, right = getattr(ours, field.name), getattr(theirs, field.name)
            assert left is right is None or torch.equal(left, right)


def test_each_role_is_laid_out_as_asked_and_both_learners_learn(evenings: list[Evening]) -> None:
    # Ranks 2 and 3 are the critic's second stage: only they know its values.
    assert [evening.together.values[0] is None for evening in evenings] == [
        True,
        True,
        False,
        False,
    ]
    assert all(evening.together.ref_logprobs[0] is not None for evening in evenings)
    actor, critic = (
        [metrics[name] for metrics in listed]
        for listed, name in (
            (evenings[3].together.actor_metrics, "policy_loss"),
            (evenings[3].together.critic_metrics, "value_loss"),
        )
    )
    assert actor[-1] < actor[0]
    assert critic[-1] < critic[0]


def test_an_equal_layout_makes_no_groups_and_those_of_others_stay(evenings: list[Evening]) -> None:
    assert [evening.groups_of_an_equal_layout for evening in evenings] == [0, 0, 0, 0]
    # Of ranks 0 and 1, and of ranks 2 and 3: 0 + 1 and 2 + 3.
    assert [evening.sum_of_others for evening in evenings] == [1.0, 1.0, 5.0, 5.0]
