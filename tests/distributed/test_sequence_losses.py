"""Losses that ask for the ratio of a whole sequence, whoever has its tokens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from assembly import assembled
from forked_workers import ForkedWorkers
from nightly import at_night_but
from test_training_layouts import OPTIMIZER, check_updates, minibatches
from training_messages import LOSS, Case, Course, Updated

from mindrl.algorithms.covariance import covariances, highest
from mindrl.algorithms.kl import log_ratio
from mindrl.algorithms.losses import Loss
from mindrl.algorithms.rollout_correction import corrected
from mindrl.algorithms.token_loss import resolve_token_loss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Minibatch
from mindrl.config.rl import RLConfig, RolloutCorrection
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

LAYOUTS = (
    TrainLayout(cp=2),
    TrainLayout(dp=2),
    TrainLayout(tp=2),
    TrainLayout(pp=2),
)
PADDED = {"removes_padding": False}


@pytest.mark.parametrize("name", at_night_but([], ["gspo", "gmpo"]))
def test_two_updates_are_those_of_one_process_in_every_layout_packed_and_padded(
    name: str, forked_workers: ForkedWorkers, random_model_of: Callable[..., Path]
) -> None:
    folder = random_model_of("qwen2")
    # Bounds that the ratios of sequences, within e^-0.3 and e^0.3, reach.
    bounds = {"clip_ratio_low": 0.03, "clip_ratio_high": 0.04}
    tokens = resolve_token_loss(RLConfig(mini_batch_size=1, policy_loss=name, **bounds))
    loss = replace(LOSS, tokens=tokens)
    course = course_of(minibatches(str(folder), count=2), loss)
    alone = check_layouts(folder, course, forked_workers)
    assert 0.1 < alone.metrics[0]["clip_fraction"] < 0.9


REJECTS = RolloutCorrection(level="sequence", max_weight=1.3, reject_below=0.9, reject_above=1.2)


def test_importance_weights_of_sequences_are_those_of_one_process_in_every_layout(
    forked_workers: ForkedWorkers, random_model_of: Callable[..., Path]
) -> None:
    folder = random_model_of("qwen2")
    (minibatch,) = minibatches(str(folder), count=1)
    assert minibatch.old_logprobs_BT is not None
    generator = torch.Generator().manual_seed(4)
    noise_BT = 0.3 * torch.randn(minibatch.old_logprobs_BT.shape, generator=generator)
    drawn_BT = (minibatch.old_logprobs_BT + noise_BT) * minibatch.response_mask_BT
    log_BT = log_ratio(minibatch.old_logprobs_BT, drawn_BT)
    found = corrected(REJECTS, log_BT, minibatch.response_mask_BT)
    assert 0 < found.rejected_B.sum() < 8
    assert found.beyond_BT.any()
    drawn = replace(minibatch, rollout_logprobs_BT=drawn_BT)
    course = course_of([drawn], replace(LOSS, correction=REJECTS))
    check_layouts(folder, course, forked_workers)


def test_picked_tokens_and_the_weight_of_entropy_are_those_of_one_process_in_every_layout(
    forked_workers: ForkedWorkers, random_model_of: Callable[..., Path]
) -> None:
    folder = random_model_of("qwen2")
    (minibatch,) = minibatches(str(folder), count=1)
    assert minibatch.old_logprobs_BT is not None
    values_BT = covariances(
        minibatch.old_logprobs_BT, minibatch.advantages_BT, minibatch.response_mask_BT
    )
    told = replace(
        minibatch,
        picked_BT=highest(values_BT, minibatch.response_mask_BT, 0.2),
        entropy_coef_B=torch.full((len(minibatch),), 0.25),
    )
    tokens = resolve_token_loss(RLConfig(mini_batch_size=1, policy_loss="kl_cov"))
    course = course_of([told], replace(LOSS, tokens=tokens))
    check_layouts(folder, course, forked_workers)


def course_of(batches: list[Minibatch], loss: Loss[Minibatch]) -> Course:
    batching = MicroBatching(sequences=2)
    return Course(minibatches=batches, loss=loss, optimizer=OPTIMIZER, micro_batching=batching)


def check_layouts(folder: Path, course: Course, forked_workers: ForkedWorkers) -> Updated:
    """Compare every layout, packed and padded, with one process; returns what that says."""
    case = Case(folder=str(folder))
    ((alone,),) = forked_workers.run("training_probe:updates", [case], course)
    cases = [replace(case, layout=layout) for layout in LAYOUTS]
    cases += [replace(each, settings=PADDED) for each in cases[:2]]
    replies: list[list[Updated]] = forked_workers.run(
        "training_probe:updates", cases, course, ranks=2
    )
    expected = assembled(str(folder), TrainLayout(), [alone.weights])
    check_updates(folder, cases, replies, alone.metrics, expected)
    found: Updated = alone
    return found
