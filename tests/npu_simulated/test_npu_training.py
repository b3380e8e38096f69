"""Layouts of both engines on simulated NPUs, against the same on the CPU.

Shapes: B sequences, T positions.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import few_unless_night
from simulated import Machine, SimulatedNpus
from training_messages import LOSS, OPTIMIZER, Case, Course, Updated

from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Minibatch
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.npu_simulated

MakeModel = Callable[..., Path]
PAIR, EXPERTS = TrainLayout(tp=2), TrainLayout(tp=2, ep=2)
LAYOUTS = {
    "qwen3": few_unless_night([PAIR], [TrainLayout(dp=2), PAIR, TrainLayout(pp=2)]),
    "qwen3_moe": few_unless_night([EXPERTS], [TrainLayout(dp=2, ep=2), EXPERTS]),
}
OF_PYTORCH_ALONE = {
    "qwen3": [TrainLayout(dp=2), TrainLayout(tp=2), TrainLayout(cp=2), TrainLayout(pp=2)],
    "qwen3_moe": [TrainLayout(dp=2, ep=2)],
}


@pytest.fixture(scope="module")
def course() -> Course:
    """Two updates on four sequences; behind each everything leaves the device and comes back."""
    generator = torch.Generator().manual_seed(1)
    lengths_B, B, T = torch.tensor((5, 17, 9, 12)), 4, 17
    inside_BT = torch.arange(T) < lengths_B[:, None]
    mask_BT = inside_BT & (torch.arange(T) >= 3)
    logprobs_BT = -4.5 + 0.3 * torch.randn(B, T, generator=generator)
    advantages_B = torch.tensor([1.5, -0.5, 0.25, -1.0])
    tokens_BT = torch.randint(0, 211, (B, T), generator=generator) * inside_BT
    # Two prompts with two samples each.
    tokens_BT[1::2, :3] = tokens_BT[::2, :3]
    minibatch = Minibatch(
        tokens_BT=tokens_BT,
        lengths_B=lengths_B,
        response_mask_BT=mask_BT,
        old_logprobs_BT=logprobs_BT * mask_BT,
        advantages_BT=advantages_B[:, None] * mask_BT,
        token_weights_BT=token_mean_weights(mask_BT),
        ref_logprobs_BT=(logprobs_BT - 0.1) * mask_BT,
    )
    return Course(
        minibatches=[minibatch] * 2,
        loss=LOSS,
        optimizer=OPTIMIZER,
        micro_batching=MicroBatching(sequences=2),
        swap=True,
    )


@pytest.fixture(scope="module")
def cases(random_model_of: MakeModel) -> list[Case]:
    return [
        Case(folder=str(random_model_of(family)), layout=layout, sequence_parallel=layout.tp > 1)
        for family, layouts in LAYOUTS.items()
        for layout in layouts
    ]


@pytest.fixture(scope="module")
def on_time(cases: list[Case], course: Course, npu_workers: SimulatedNpus) -> list[list[Updated]]:
    """What each rank says of each layout."""
    return npu_workers.run("npu_training_probe:updates", cases, course, ranks=2)


def test_updates_in_each_layout_are_those_of_the_cpu_and_nothing_stays_on_the_device(
    cases: list[Case], course: Course, on_time: list[list[Updated]], forked_workers: ForkedWorkers
) -> None:
    on_cpu = forked_workers.run("training_probe:updates", cases, course, ranks=2)
    for npus, cpus in zip(on_time, on_cpu, strict=True):
        for ours, theirs in zip(npus, cpus, strict=True):
            check_alike(ours, theirs)
            assert ours.device_bytes == [0, 0]


@pytest.mark.nightly
def test_so_are_those_of_pytorchs_own_engine(
    random_model_of: MakeModel,
    course: Course,
    npu_workers: SimulatedNpus,
    forked_workers: ForkedWorkers,
) -> None:
    cases = [
        Case(folder=str(random_model_of(family)), layout=layout, backend="archon")
        for family, layouts in OF_PYTORCH_ALONE.items()
        for layout in layouts
    ]
    cases += [replace(case, settings={"shares_prompts": True}) for case in cases[:3]]
    npus = npu_workers.run("training_probe:updates", cases, course, ranks=2)
    cpus = forked_workers.run("training_probe:updates", cases, course, ranks=2)
    for found, expected in zip(npus, cpus, strict=True):
        for ours, theirs in zip(found, expected, strict=True):
            check_alike(ours, theirs)
            assert ours.device_bytes == [0, 0]


def check_alike(ours: Updated, theirs: Updated) -> None:
    """Compare two devices: sums in float32 in another order, over four layers."""
    for mine, other in zip(ours.metrics, theirs.metrics, strict=True):
        assert mine == pytest.approx(other, rel=1e-5, abs=2e-6)
    assert ours.weights.keys() == theirs.weights.keys()
    for name, tensor in ours.weights.items():
        # Steps of at most 1e-2 on weights below 2.
        torch.testing.assert_close(tensor, theirs.weights[name], atol=1e-6, rtol=0)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2])
def test_however_late_each_stream_is_the_bits_are_the_same(
    seed: int,
    cases: list[Case],
    course: Course,
    on_time: list[list[Updated]],
    npu_workers: SimulatedNpus,
) -> None:
    machine = Machine(delay_us=100, seed=seed)
    late = npu_workers.run("npu_training_probe:updates", cases, course, ranks=2, machine=machine)
    for before, after in zip(on_time, late, strict=True):
        for ours, theirs in zip(before, after, strict=True):
            assert ours.metrics == theirs.metrics
            for name, tensor in ours.weights.items():
                assert torch.equal(tensor, theirs.weights[name]), name
