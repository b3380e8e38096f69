"""Whole workers on simulated NPUs, trainer and vllm-ascend in one process, against the CPU's.

The engine answers with its likeliest tokens, so both devices train on the same ones.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but
from role_steps import GREEDY, PROMPTS, StepTrace, take_step
from simulated import Machine, SimulatedNpus, Workers

from mindrl.config.run import RunConfig
from mindrl.launch.parts import worker_handle
from mindrl.preflight.memory_plan import memory_plan
from mindrl.preflight.run_shardings import RunPlan, unordered_shardings

pytestmark = pytest.mark.npu_simulated

MakeModel = Callable[..., Path]
Values = dict[str, Any]
ENGINE_TP2 = {"generate_config.infer_tensor_parallel_size": 2}
TWO: Values = {"rl_config.actor_resource.num_npus": 2, "rl_config.init_kl_coef": 0.1}
STEPS, MIB = 2, 1 << 20
PAGE, BLOCK = 2 * MIB, 20 * MIB
"""What torch_npu takes for tensors below 1 MiB together, and for those of 1 to 10 MiB."""
ON_TIME = Machine()


class Trial(NamedTuple):
    """A model, and the keys of a run."""

    family: str
    keys: Values


TRIALS = {
    "GRPO, TP 1": Trial(
        "qwen3", {"rl_config.init_kl_coef": 0.1, "megatron_training.deterministic": True}
    ),
    "GRPO, TP 2 to TP 1": Trial("qwen3", TWO | {"actor_config.tensor_model_parallel_size": 2}),
    "GRPO, EP 2 to TP 2": Trial(
        "qwen3_moe", TWO | ENGINE_TP2 | {"actor_config.expert_model_parallel_size": 2}
    ),
    "PPO": Trial(
        "qwen3",
        TWO
        | ENGINE_TP2
        | {
            "rl_config.adv_estimator": "gae",
            "critic_config.tensor_model_parallel_size": 2,
            "critic_config.lr": 1e-3,
            "reward_config.tensor_model_parallel_size": 1,
        },
    ),
}

ALONE = Trial("qwen3", {"rl_config.init_kl_coef": 0.0, "generate_config.kv_cache_mib": 64})


class Told(NamedTuple):
    """What workers said in their steps, and behind them."""

    steps: list[StepTrace]
    answers: list[int]


@pytest.fixture(scope="module")
def planned(
    random_model_of: MakeModel, models: dict[str, str], run_config: Callable[..., RunConfig]
) -> Callable[[Trial, str], RunPlan]:
    """Plan a trial on a kind of device."""

    def plan(trial: Trial, device: str) -> RunPlan:
        loads = {
            f"{role}_config.load": models[role]
            for role in ("critic", "reward")
            if any(key.startswith(role) for key in trial.keys)
        }
        keys = trial.keys | loads | {"rl_config.device": device}
        return unordered_shardings(run_config(random_model_of(trial.family), keys)).ordered.plan

    return plan


def told(group: Any, plan: RunPlan) -> Told:
    actor = worker_handle(group, plan)
    steps = [take_step(actor, plan.config, step, GREEDY) for step in range(STEPS)]
    answers = actor.generate_sequences(PROMPTS, GREEDY, step=STEPS)
    return Told(steps, answers.tokens_BT.tolist())


@pytest.fixture(scope="module")
def on_npus(
    planned: Callable[[Trial, str], RunPlan], npu_workers: SimulatedNpus
) -> Callable[..., Told]:
    """Return what the workers of a trial say on a machine, asked once."""

    @cache
    def said(name: str, machine: Machine = ON_TIME) -> Told:
        plan = planned(TRIALS[name], "npu")
        with npu_workers.workers(plan, machine) as group:
            return told(group, plan)

    return said


@pytest.mark.parametrize("name", at_night_but(("GRPO, EP 2 to TP 2",), TRIALS))
def test_steps_are_those_of_the_cpu(
    name: str,
    planned: Callable[[Trial, str], RunPlan],
    on_npus: Callable[..., Told],
    forked_workers: ForkedWorkers,
) -> None:
    found, plan = on_npus(name), planned(TRIALS[name], "cpu")
    group = forked_workers.start(plan)
    expected = told(group, plan)
    group.stop()
    assert found.answers == expected.answers
    for ours, theirs in zip(found.steps, expected.steps, strict=True):
        check_alike(ours, theirs)


def check_alike(ours: StepTrace, theirs: StepTrace) -> None:
    """Compare two devices: sums in float32 in another order, over four layers.

    Behind an update the largest difference is 3e-5 of a KL and of a value.
    """
    assert torch.equal(ours.sequences.tokens_BT, theirs.sequences.tokens_BT)
    for mine, other in ((ours.values_BT, theirs.values_BT), (ours.rewards_B, theirs.rewards_B)):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, atol=1e-4, rtol=0)
    assert ours.metrics.keys() == theirs.metrics.keys()
    for role, metrics in theirs.metrics.items():
        assert ours.metrics[role] == pytest.approx(metrics, rel=1e-4, abs=1e-5), role
        assert metrics["grad_norm"] > 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize("name", at_night_but(("PPO",), TRIALS))
def test_however_late_each_stream_is_the_bits_are_the_same(
    name: str, on_npus: Callable[..., Told]
) -> None:
    found, late = on_npus(name), on_npus(name, Machine(delay_us=100))
    assert found.answers == late.answers
    for ours, theirs in zip(found.steps, late.steps, strict=True):
        assert ours.metrics == theirs.metrics
        for mine, other in ((ours.values_BT, theirs.values_BT), (ours.rewards_B, theirs.rewards_B)):
            assert mine is other is None or torch.equal(mine, other)


def test_a_device_with_room_for_the_peak_is_enough_and_one_page_less_is_refused_by_name(
    planned: Callable[[Trial, str], RunPlan], workers_of: Workers
) -> None:
    plan, machine = planned(ALONE, "npu"), Machine(capacity_bytes=256 * MIB)
    (found,) = workers_of("0.23").run("worker_probe:crowded", plan, machine=machine)
    predicted = memory_plan(unordered_shardings(plan.config).ordered, machine.capacity_bytes)
    for moment, there in zip(found.moments, predicted.of_rank(0), strict=True):
        # Nothing travels to another rank.
        assert moment.region_bytes | {"staging": 0} == there.region_bytes | {"staging": 0}
    refused = (
        "out of device memory of 256.0 MiB: kv_cache needs 64.0 MiB more; on the device: "
        "rollout_weights 2.5 MiB"
    )
    assert found.said == ["", refused, ""]
    assert found.need == predicted.need_bytes(0)
    # Of the pinned release: 0.30 has one tensor for keys and values.
    # The plan has the bytes of tensors, the device what torch's allocator takes for them: 2.5 MiB
    # of weights in pages, a cache of 8 tensors of 8 MiB, of which a block holds two, and of what
    # the engine keeps besides a block for a buffer of 1.1 MiB, and a page for smaller ones.
    assert found.peak == 2 * PAGE + 4 * BLOCK + BLOCK + PAGE


def test_a_device_that_is_smaller_than_the_plan_is_refused_before_anything_lies_on_it(
    planned: Callable[[Trial, str], RunPlan], npu_workers: SimulatedNpus
) -> None:
    machine = Machine(capacity_bytes=66 * MIB)
    (said,) = npu_workers.run("worker_probe:refusal", planned(ALONE, "npu"), machine=machine)
    assert "needs about 66.5 MiB of device memory on rank 0" in said
    assert "the device has 66.0 MiB" in said
