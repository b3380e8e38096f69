"""The members of a built `ActorHybridWorker` are the objects that its methods work with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from role_steps import GREEDY, PROMPTS
from test_reference import pushed_up
from torch import Tensor

from mindrl.config.run import RunConfig
from mindrl.launch.parts import worker_handle
from mindrl.preflight.run_shardings import unordered_shardings

pytestmark = pytest.mark.distributed

UNLIKELY = 7
"""A token."""


@pytest.mark.parametrize(
    ("backend", "engine", "optimizer"),
    [("megatron", "MegatronEngine", "MegatronOptimizer"), ("archon:d1", "ArchonEngine", "AdamW")],
)
def test_model_optimizer_inference_model_and_sharding_manager_are_the_real_ones(
    backend: str,
    engine: str,
    optimizer: str,
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
) -> None:
    config = run_config(random_model(False), {"actor_config.backend": backend})
    plan = unordered_shardings(config).ordered.plan
    group = forked_workers.start(plan, "hybrid_probe:HybridProbe")
    actor = worker_handle(group, plan)

    (classes,) = group.call_all("classes")
    assert classes["model"][0] == engine
    assert optimizer in classes["optimizer"]
    assert classes["inference_model"][0] == "VllmEngine"
    assert classes["sharding_manager"][0] == "ShardingManager"

    sequences = actor.generate_sequences(PROMPTS, GREEDY, step=0).sequences()
    rows = [
        tokens[:length].tolist()
        for tokens, length in zip(sequences.tokens_BT, sequences.lengths_B, strict=True)
    ]

    def read() -> tuple[Tensor, Tensor]:
        """Return the last tokens' log-probs of the inference model, and all of the model."""
        (sampled,) = group.call_all("last_logprobs", rows)
        return torch.tensor(sampled), actor.compute_log_prob(sequences).logprobs_BT

    def update(prepare: str) -> float:
        group.call_all(prepare)
        actor.update(pushed_up(sequences, before_BT, before_BT))
        (moved,) = group.call_all("weights_moved")
        return moved

    first_B, before_BT = read()
    group.call_all("weights_moved")
    assert update("hold_optimizer") == 0
    assert torch.equal(read()[1], before_BT)

    # Adam moves a weight by its learning rate at first.
    assert update("release_optimizer") == pytest.approx(config.actor_config.lr, rel=1e-2)
    moved_B, after_BT = read()
    last_B = sequences.lengths_B[:, None] - 1
    # Two implementations of one float32 model; the update changes a log-prob 100 times as much.
    torch.testing.assert_close(first_B, before_BT.gather(1, last_B)[:, 0], atol=1e-4, rtol=0)
    torch.testing.assert_close(moved_B, after_BT.gather(1, last_B)[:, 0], atol=1e-4, rtol=0)
    assert (moved_B - first_B).abs().max() > 1e-2
    # A sampled token may be none of the most likely ones.
    unlikely = replace(sequences, tokens_BT=sequences.tokens_BT.scatter(1, last_B, UNLIKELY))
    read_rows = [[*row[:-1], UNLIKELY] for row in rows]
    (found,) = group.call_all("last_logprobs", read_rows)
    expected_B = actor.compute_log_prob(unlikely).logprobs_BT.gather(1, last_B)[:, 0]
    assert expected_B.max() < -6
    torch.testing.assert_close(torch.tensor(found), expected_B, atol=1e-4, rtol=0)
    group.stop()
