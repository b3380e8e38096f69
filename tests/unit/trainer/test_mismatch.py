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


@pytest.mark.parametrize("aged", [False, True])
def test_measures_of_several_blocks_are_those_of_all_tokens_in_float64(aged: bool) -> None:
    """300 responses of 0 to 90 tokens, of which some have no log-prob; 64 are measured at once."""
    generator = torch.Generator().manual_seed(5)
    lengths_B = torch.randint(91, (300,), generator=generator)
    tokens = int(lengths_B.sum())
    drawn_N = -torch.rand(tokens, generator=generator)
    own_N = drawn_N - torch.randn(tokens, generator=generator)
    own_N[::97], own_N[5], own_N[11] = math.nan, -math.inf, drawn_N[11] - 30
    ages_N = torch.randint(3, (tokens,), generator=generator)
    responses = Responses(
        token_ids_N=torch.ones(tokens, dtype=torch.int64),
        logprobs_N=drawn_N,
        lengths_B=lengths_B,
        finished_B=torch.ones(300, dtype=torch.bool),
    )
    there = Rollouts.from_responses([(1, 2)], responses, [0] * 300)
    own_BT = torch.full(there.tokens_BT.shape, math.nan)
    own_BT[there.response_mask_BT] = own_N
    found = mismatch(there.with_ages(ages_N) if aged else there, own_BT, None)

    gap_N, known_N = drawn_N.double() - own_N.double(), (drawn_N - own_N).isfinite()
    new_N = ages_N == 0 if aged else torch.ones(tokens, dtype=torch.bool)
    logs_N = (-gap_N[known_N]).clamp(-20, 20)
    rows_N = torch.arange(300).repeat_interleave(lengths_B)[known_N]
    means = [logs_N[rows_N == row] for row in range(300)]
    expected = {
        "nonfinite/logprob_gap": (~known_N & new_N).sum().item(),
        "logprob_gap/mean": gap_N[known_N & new_N].abs().mean().item(),
        "logprob_gap/max": gap_N[known_N & new_N].abs().max().item(),
        "mismatch/kl": gap_N[known_N].mean().item(),
        "mismatch/kl_low_variance": (logs_N.exp() - 1 - logs_N).mean().item(),
        "mismatch/perplexity_ratio": sum(
            math.exp(-each.mean()) if len(each) else 1.0 for each in means
        )
        / 300,
        "mismatch/effective_sample_size": (
            logs_N.exp().sum() ** 2 / len(logs_N) / logs_N.exp().square().sum()
        ).item(),
    }
    if aged:
        old_N = known_N & ~new_N
        expected["drift/mean"] = gap_N[old_N].abs().mean().item()
        expected["drift/max"] = gap_N[old_N].abs().max().item()
    # Elements are rounded to float32, 6e-8 of them; their sums are not.
    assert found == pytest.approx(expected, rel=1e-6)


def test_of_four_weights_of_which_one_counts_a_quarter_is_left() -> None:
    assert effective_sample_size(torch.tensor([0.0, 3, 0, 0])) == 0.25
    assert effective_sample_size(torch.ones(4)) == 1
    assert effective_sample_size(torch.zeros(4)) == 0
