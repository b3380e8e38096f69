"""Routes of the rollout engine, replayed in training by two workers that share experts.

A sequence is sampled by one worker and trained on by another. Shapes: B sequences, T positions, N
response tokens.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but
from role_steps import PROMPTS, SAMPLING
from test_layouts import unordered_shardings, worker_handle
from torch import Tensor

from mindrl.batch.experience import Experience, Minibatch
from mindrl.batch.route_keys import with_content_keys
from mindrl.config.generate import SamplingConfig
from mindrl.config.rl import RLConfig
from mindrl.config.run import RunConfig
from mindrl.trainer.minibatches import MinibatchDealer

pytestmark = pytest.mark.distributed

LONG = replace(
    SAMPLING, section=SamplingConfig(temperature=1.0, max_tokens=24), samples_per_prompt=4
)
WAYS: dict[str, Any] = {
    "rl_config.actor_resource.num_npus": 2,
    "actor_config.expert_model_parallel_size": 2,
    "generate_config.sampling_config.max_tokens": 24,
    "actor_config.router_replay": "R3",
}
_SECTION = "generate_config.speculative_config"
DRAFTS: dict[str, Any] = {
    f"{_SECTION}.method": "ngram",
    # After each token that has occurred before.
    f"{_SECTION}.prompt_lookup_min": 1,
    f"{_SECTION}.num_speculative_tokens": 3,
}
BF16: dict[str, Any] = {"megatron_training.bf16": True, "generate_config.dtype": "bfloat16"}
TP, EP = (f"generate_config.infer_{name}_parallel_size" for name in ("tensor", "expert"))
ENGINES: dict[str, dict[str, Any]] = {"DP2": {}, "TP2": {TP: 2}, "TP2 EP2": {TP: 2, EP: 2}}


class Step(NamedTuple):
    """A rollout, read freely and with the engine's experts, and an update."""

    free_N: Tensor
    """Distance of each token's log-prob from the engine's."""
    replayed_N: Tensor
    update: dict[str, float]


def step_of(workers: ForkedWorkers, config: RunConfig) -> Step:
    plan = unordered_shardings(config).ordered.plan
    group = workers.start(plan)
    actor = worker_handle(group, plan)
    rollouts = actor.generate_sequences(PROMPTS, LONG, step=0)
    named, mask_BT = with_content_keys(rollouts), rollouts.response_mask_BT
    free_BT, replayed_BT = (
        actor.compute_log_prob(each.sequences()).logprobs_BT for each in (rollouts, named)
    )
    wanted_B = (rollouts.tokens_BT % 3 == 0).float().mean(1)
    experience = named.into(
        Experience,
        old_logprobs_BT=replayed_BT,
        advantages_BT=(wanted_B - wanted_B.mean())[:, None] * mask_BT,
        ref_logprobs_BT=None,
    )
    corrects = config.rollout_correction is not None
    dealer = MinibatchDealer(RLConfig(mini_batch_size=4), seed=0, longest=24, corrects=corrects)
    (minibatch,) = dealer.cut(experience, dealer.deal(experience.group_B), Minibatch)
    update = actor.update(minibatch).metrics
    group.stop()
    engine_BT = rollouts.rollout_logprobs_BT
    free_N, replayed_N = ((each - engine_BT)[mask_BT].abs() for each in (free_BT, replayed_BT))
    return Step(free_N, replayed_N, update)


@pytest.mark.parametrize("engine", at_night_but(["DP2"], ENGINES))
def test_in_bfloat16_the_largest_gap_falls_at_least_twofold(
    engine: str,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
    run_config: Callable[..., RunConfig],
) -> None:
    values = WAYS | BF16 | ENGINES[engine]
    found = step_of(forked_workers, run_config(random_model_of("qwen3_moe"), values))
    assert found.update["without_routes"] == 0.0
    # Two in a hundred differ; the largest gap was 2.1, and 0.15 with replay.
    assert found.update["differing_routes"] > 0.0
    assert found.replayed_N.max() < found.free_N.max() / 2


@pytest.mark.parametrize(
    "way",
    at_night_but(
        ["tokens one by one"],
        ["tokens one by one", "drafts", "drafts by qwen3", "drafts by qwen3_moe"],
    ),
)
def test_in_float32_replay_changes_nothing(
    way: str,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
    run_config: Callable[..., RunConfig],
) -> None:
    """Of drafts that the engine rejects, the routes are those of tokens that no sequence has."""
    values, (_, _, family) = dict(WAYS), way.partition("drafts by ")
    if way == "drafts":
        values |= DRAFTS
    elif family:
        # Its routers are not those of the policy.
        drafting = str(random_model_of(family, spread=0.1))
        values |= {f"{_SECTION}.method": "draft_model", f"{_SECTION}.model": drafting}
    found = step_of(forked_workers, run_config(random_model_of("qwen3_moe"), values))
    assert found.update["without_routes"] == found.update["differing_routes"] == 0.0
    torch.testing.assert_close(found.replayed_N, found.free_N, atol=1e-6, rtol=0)
