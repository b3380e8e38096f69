"""What is measured between the engine and the trainer."""

import math

import pytest
import torch

from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.config.rl import RolloutCorrection
from mindrl.trainer.mismatch import effective_sample_size, mismatch

# Log of the engine's probability over the trainer's, of two responses to one prompt.
GAPS = ([0.1, -0.2], [0.4])


def rollouts() -> Rollouts:
    responses = Responses.of(
        token_ids=[(5, 6), (7,)],
        logprobs=[[gap - 1 for gap in gaps] for gaps in GAPS],
        finished=[True] * 2,
    )
    return Rollouts.from_responses([(1, 2)], responses, [0, 0])


def test_tokens_that_earlier_weights_drew_have_a_drift_in_the_place_of_a_gap() -> None:
    there = rollouts().with_ages(torch.tensor([1, 0, 2]))
    own_BT = torch.where(there.response_mask_BT, -1.0, torch.nan)
    found = mismatch(there, own_BT, None)
    assert found["logprob_gap/mean"] == pytest.approx(0.2)
    assert (found["drift/mean"], found["drift/max"]) == pytest.approx((0.25, 0.4))
    all_old = mismatch(there.with_ages(torch.tensor([1, 1, 2])), own_BT, None)
    assert "logprob_gap/mean" not in all_old


def test_every_measure_is_the_one_by_hand() -> None:
    there = rollouts()
    own_BT = torch.where(there.response_mask_BT, -1.0, torch.nan)
    found = mismatch(there, own_BT, RolloutCorrection(level="token", max_weight=1.1))
    ratios = [math.exp(-gap) for gaps in GAPS for gap in gaps]
    used = [min(ratio, 1.1) for ratio in ratios]
    k3 = sum(ratio - 1 - math.log(ratio) for ratio in ratios) / 3
    expected = {
        "logprob_gap/mean": 0.7 / 3,
        "logprob_gap/max": 0.4,
        "mismatch/kl": 0.3 / 3,
        "mismatch/kl_low_variance": k3,
        "mismatch/perplexity_ratio": (math.exp(-0.05) + math.exp(0.4)) / 2,
        "mismatch/effective_sample_size": sum(ratios) ** 2 / 3 / sum(w * w for w in ratios),
        "correction/weight_mean": sum(used) / 3,
        "correction/effective_sample_size": sum(used) ** 2 / 3 / sum(w * w for w in used),
        "correction/truncated_fraction": 1 / 3,
        "correction/rejected_fraction": 0.0,
    }
    # Sums of three numbers in float32; k3 is a difference of numbers near 1.
    assert found == pytest.approx(expected, rel=1e-5)
    masks = RolloutCorrection(level="token", beyond="mask", max_weight=1.1, reject_below=0.7)
    masked = mismatch(there, own_BT, masks)
    assert masked["correction/masked_fraction"] == pytest.approx(1 / 3)
    # The second response: e^-0.4 is 0.67.
    assert masked["correction/rejected_fraction"] == 0.5


def test_a_token_without_a_log_prob_is_left_out_and_counted() -> None:
    there = rollouts()
    own_BT = torch.where(there.response_mask_BT, -1.0, 0.0)
    own_BT[0, 2] = math.inf
    found = mismatch(there, own_BT, None)
    assert found["nonfinite/logprob_gap"] == 1
    assert found["mismatch/kl"] == pytest.approx(0.1, rel=1e-5)
    own_BT[there.response_mask_BT] = math.nan
    assert mismatch(there, own_BT, None) == {"nonfinite/logprob_gap": 3.0}


def test_of_four_weights_of_which_one_counts_a_quarter_is_left() -> None:
    assert effective_sample_size(torch.tensor([0.0, 3, 0, 0])) == 0.25
    assert effective_sample_size(torch.ones(4)) == 1
    assert effective_sample_size(torch.zeros(4)) == 0
