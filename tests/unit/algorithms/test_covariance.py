"""Tokens that are picked by the covariance of their log-prob and their advantage.

Shapes: B sequences, T positions.
"""

from statistics import mean
from typing import Any

import pytest
import torch

from mindrl.algorithms.covariance import covariances, highest, some_between
from mindrl.algorithms.token_loss import resolve_token_loss
from mindrl.batch.experience import Experience
from mindrl.config.rl import RLConfig

MASK_BT = torch.tensor([[0, 1, 1], [0, 1, 1]]) > 0
LOGPROBS_BT = torch.tensor([[9.0, -1, -3], [9, -2, -6]])
ADVANTAGES_BT = torch.tensor([[9.0, 1, 1], [9, -1, -1]])
# The means are -3 and 0: (2)(1), (0)(1), (1)(-1), (-3)(-1).
BY_HAND = [[0.0, 2, 0], [0, -1, 3]]


def test_covariances_are_those_by_hand_and_those_of_a_plain_loop() -> None:
    assert covariances(LOGPROBS_BT, ADVANTAGES_BT, MASK_BT).tolist() == BY_HAND
    generator = torch.Generator().manual_seed(1)
    logprobs_BT, gains_BT = torch.randn(2, 5, 9, generator=generator, dtype=torch.float64)
    mask_BT = torch.rand(5, 9, generator=generator) < 0.6
    inside = [
        (p.item(), a.item()) for p, a in zip(logprobs_BT[mask_BT], gains_BT[mask_BT], strict=True)
    ]
    mean_p, mean_a = mean(p for p, _ in inside), mean(a for _, a in inside)
    found_N = covariances(logprobs_BT, gains_BT, mask_BT)[mask_BT]
    assert found_N.tolist() == pytest.approx([(p - mean_p) * (a - mean_a) for p, a in inside])


def test_the_highest_are_picked_and_the_first_of_equals() -> None:
    values_BT = torch.tensor(BY_HAND)
    assert highest(values_BT, MASK_BT, 0.5).tolist() == [[False, True, False], [False, False, True]]
    # A share of none is one.
    assert highest(values_BT, MASK_BT, 0.01).nonzero().tolist() == [[1, 2]]
    assert highest(torch.zeros(2, 3), MASK_BT, 0.5).nonzero().tolist() == [[0, 1], [0, 2]]


def test_a_draw_is_of_those_between_the_bounds_and_hangs_on_its_seed_alone() -> None:
    values_BT = torch.arange(100.0).view(4, 25)
    mask_BT = values_BT % 10 != 0
    draws = [some_between(values_BT, mask_BT, (20, 79), 0.2, seed) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    for picked_BT in draws:
        # 90 tokens in the mask.
        assert picked_BT.sum() == 18
        assert (mask_BT | ~picked_BT).all()
        assert values_BT[picked_BT].min() >= 20
        assert values_BT[picked_BT].max() <= 79
    assert some_between(values_BT, mask_BT, (200, 300), 0.2, 1).sum() == 0
    assert some_between(values_BT, mask_BT, (21, 22), 0.2, 1).sum() == 2


@pytest.mark.parametrize(
    ("changes", "picked"),
    [
        ({"policy_loss": "kl_cov", "kl_cov_ratio": 0.5}, [[0, 1], [1, 2]]),
        ({"policy_loss": "clip_cov", "clip_cov_lb": 1.5, "clip_cov_ub": 2.5}, [[0, 1]]),
    ],
)
def test_a_loss_names_who_is_picked(changes: dict[str, Any], picked: list[list[int]]) -> None:
    selection = resolve_token_loss(RLConfig(mini_batch_size=1, **changes)).selection
    assert selection is not None
    update = Experience(
        tokens_BT=torch.ones(2, 3, dtype=torch.int64),
        lengths_B=torch.tensor([3, 3]),
        response_mask_BT=MASK_BT,
        group_B=torch.tensor([0, 0]),
        finished_B=torch.tensor([True, True]),
        rollout_logprobs_BT=LOGPROBS_BT,
        old_logprobs_BT=None,
        ref_logprobs_BT=None,
        advantages_BT=ADVANTAGES_BT,
    )
    for seed in (0, 1):
        found = selection.select(update, LOGPROBS_BT, seed)
        assert found.nonzero().tolist() == picked
