"""All tensor-parallel layouts of two workers train and answer like one worker."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but

from mindrl.batch.experience import Experience, Minibatch
from mindrl.batch.prompts import Prompt
from mindrl.config.generate import SamplingConfig
from mindrl.config.rl import RLConfig
from mindrl.config.run import RunConfig
from mindrl.launch.parts import worker_handle
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.rollout.engine import Sampling
from mindrl.trainer.minibatches import MinibatchDealer

PROMPTS = [
    Prompt(uid=uid, token_ids=tuple(range(5 + uid, 12 + 2 * uid)), text="", answer="")
    for uid in range(4)
]
SAMPLING = Sampling(
    section=SamplingConfig(temperature=1.0, max_tokens=16),
    stop_token_ids=(1,),
    samples_per_prompt=4,
)
GREEDY = Sampling(section=SamplingConfig(max_tokens=16), stop_token_ids=(1,), is_greedy=True)
LOSS_TOLERANCE = 2e-6
"""float32 sums in another order: about ten roundings of 1.2e-7 on losses of size 1."""


@dataclass
class Trace:
    """What a short run did."""

    losses: list[float]
    grad_norms: list[float]
    gaps: list[float]
    tokens: list[list[int]]
    greedy: list[list[int]]
    received: list[float]
    """Bytes of each reshard, over all workers."""


def train_for_three_steps(workers: ForkedWorkers, config: RunConfig) -> Trace:
    """Roll out, score and update three times, with advantages that depend on tokens alone."""
    plan = unordered_shardings(config).ordered.plan
    group = workers.start(plan)
    actor = worker_handle(group, plan)
    trace = Trace(losses=[], grad_norms=[], gaps=[], tokens=[], greedy=[], received=[])
    for step in range(3):
        rollouts = actor.generate_sequences(PROMPTS, SAMPLING, step=step)
        trace.received.append(actor.flush_metrics()["bytes/reshard_received"])
        old_logprobs_BT = actor.compute_log_prob(rollouts.sequences()).logprobs_BT
        gap_N = (old_logprobs_BT - rollouts.rollout_logprobs_BT)[rollouts.response_mask_BT]
        wanted_B = (rollouts.tokens_BT % 3 == 0).float().mean(1)
        experience = rollouts.into(
            Experience,
            old_logprobs_BT=old_logprobs_BT,
            advantages_BT=(wanted_B - wanted_B.mean())[:, None] * rollouts.response_mask_BT * 10,
            ref_logprobs_BT=None,
        )
        dealer = MinibatchDealer(
            RLConfig(mini_batch_size=4, epochs=2),
            seed=0,
            longest=4,
            # In bfloat16 a run corrects for the engine by default.
            corrects=config.rollout_correction is not None,
        )
        dealt = dealer.deal(experience.group_B)
        updates = [actor.update(each).metrics for each in dealer.cut(experience, dealt, Minibatch)]
        trace.losses += [update["policy_loss"] for update in updates]
        trace.grad_norms += [update["grad_norm"] for update in updates]
        trace.gaps.append(gap_N.abs().mean().item())
        trace.tokens += rollouts.response_tokens()[:16]
    answers = actor.generate_sequences(PROMPTS, GREEDY, step=0)
    trace.received.append(actor.flush_metrics()["bytes/reshard_received"])
    trace.greedy = answers.response_tokens()[:4]
    group.stop()
    return trace


@pytest.fixture(scope="session", params=at_night_but([True], [True, False]), ids=["tied", "untied"])
def alone(
    request: pytest.FixtureRequest,
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
) -> tuple[bool, Trace]:
    """The run with one worker."""
    config = run_config(random_model(request.param))
    return request.param, train_for_three_steps(forked_workers, config)


@pytest.fixture
def trace_with(
    alone: tuple[bool, Trace],
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
) -> Callable[[dict[str, Any]], Trace]:
    """Run with the model of `alone` and other settings."""
    tied, _ = alone
    return lambda overrides: train_for_three_steps(
        forked_workers, run_config(random_model(tied), overrides)
    )


def assert_equal_but_for_rounding(trace: Trace, expected: Trace) -> None:
    assert trace.greedy == expected.greedy
    torch.testing.assert_close(
        torch.tensor(trace.losses), torch.tensor(expected.losses), atol=LOSS_TOLERANCE, rtol=0
    )


def assert_one_run(trace: Trace, expected: Trace) -> None:
    """Compare a run of two workers with that of one."""
    assert trace.tokens == expected.tokens
    assert_equal_but_for_rounding(trace, expected)
    torch.testing.assert_close(
        torch.tensor(trace.grad_norms), torch.tensor(expected.grad_norms), atol=0, rtol=1e-4
    )
    assert max(trace.gaps) < 1e-5


# The quickstart's run has 1 and 1, and test_expert_layouts.py has 2 and 2 with cut sequences.
@pytest.mark.parametrize(
    ("train_tp", "rollout_tp"), at_night_but([(1, 2)], product([1, 2], [1, 2]))
)
def test_two_workers_in_any_layout_equal_one_worker(
    train_tp: int,
    rollout_tp: int,
    alone: tuple[bool, Trace],
    trace_with: Callable[[dict[str, Any]], Trace],
) -> None:
    _, expected = alone
    overrides = {
        "rl_config.actor_resource.num_npus": 2,
        "actor_config.tensor_model_parallel_size": train_tp,
        "generate_config.infer_tensor_parallel_size": rollout_tp,
    }

    assert_one_run(trace_with(overrides), expected)


def test_the_run_moved_the_weights(alone: tuple[bool, Trace]) -> None:
    _, trace = alone
    assert min(trace.grad_norms) > 1e-3
    epochs = zip(trace.losses[::2], trace.losses[1::2], strict=True)
    # The second epoch starts from updated weights: its ratio, and so its loss, differs.
    assert all(first != second for first, second in epochs)


@pytest.mark.nightly
def test_sequence_parallelism_changes_nothing_but_rounding(
    alone: tuple[bool, Trace], trace_with: Callable[[dict[str, Any]], Trace]
) -> None:
    _, expected = alone
    overrides = {
        "rl_config.actor_resource.num_npus": 2,
        "actor_config.tensor_model_parallel_size": 2,
        "megatron_training.sequence_parallel": True,
    }

    trace = trace_with(overrides)

    assert_equal_but_for_rounding(trace, expected)


def test_leaving_everything_on_the_device_gives_the_same_bits(
    alone: tuple[bool, Trace], trace_with: Callable[[dict[str, Any]], Trace]
) -> None:
    _, expected = alone
    switches = ("offload_train_optimizer", "offload_train_grad", "offload_train_param")
    overrides = {f"generate_config.{switch}": False for switch in switches}

    trace = trace_with(overrides)

    assert trace == expected


@pytest.mark.nightly
def test_micro_batches_of_one_change_nothing_but_rounding(
    alone: tuple[bool, Trace], trace_with: Callable[[dict[str, Any]], Trace]
) -> None:
    _, expected = alone
    overrides = {"actor_config.micro_batch_size": 1}

    trace = trace_with(overrides)

    assert_equal_but_for_rounding(trace, expected)
