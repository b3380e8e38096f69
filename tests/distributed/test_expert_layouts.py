"""Workers that share experts, or whose ranks are in an order of our own, against one worker."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_workers import ForkedWorkers
from test_layouts import Trace, assert_equal_but_for_rounding, assert_one_run, train_for_three_steps

from mindrl.config.run import RunConfig

pytestmark = pytest.mark.distributed

MakeConfig = Callable[..., RunConfig]
WAYS: dict[str, dict[str, Any]] = {
    "EP2 to TP2": {
        "actor_config.expert_model_parallel_size": 2,
        "generate_config.infer_tensor_parallel_size": 2,
    },
    "EP2 to TP2 with whole experts": {
        "actor_config.expert_model_parallel_size": 2,
        "generate_config.infer_tensor_parallel_size": 2,
        "generate_config.infer_expert_parallel_size": 2,
    },
    "EP2 to stages": {
        "actor_config.expert_model_parallel_size": 2,
        "generate_config.infer_pipeline_parallel_size": 2,
    },
    "TP2 EP2 to DP2": {
        "actor_config.tensor_model_parallel_size": 2,
        "actor_config.expert_model_parallel_size": 2,
        "megatron_training.sequence_parallel": True,
    },
    "TP2 with cut experts to TP2 with whole experts": {
        "actor_config.tensor_model_parallel_size": 2,
        "actor_config.expert_tensor_parallel_size": 2,
        "megatron_training.sequence_parallel": True,
        "generate_config.infer_tensor_parallel_size": 2,
        "generate_config.infer_expert_parallel_size": 2,
    },
}


@pytest.fixture(scope="module")
def alone(
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
    run_config: MakeConfig,
) -> Trace:
    """The run of a mixture of experts with one worker."""
    return train_for_three_steps(forked_workers, run_config(random_model_of("qwen3_moe")))


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
def test_two_workers_that_share_experts_equal_one_worker(
    way: str,
    alone: Trace,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
    run_config: MakeConfig,
) -> None:
    two = {"rl_config.actor_resource.num_npus": 2, "generate_config.verify_weights": "always"}
    config = run_config(random_model_of("qwen3_moe"), two | WAYS[way])
    assert_one_run(train_for_three_steps(forked_workers, config), alone)


@pytest.mark.nightly
def test_four_workers_in_the_order_that_moves_least_equal_four_in_megatrons(
    forked_workers: ForkedWorkers, random_model_of: Callable[..., Path], run_config: MakeConfig
) -> None:
    overrides = {
        "rl_config.actor_resource.num_npus": 4,
        "actor_config.tensor_model_parallel_size": 2,
        "generate_config.infer_tensor_parallel_size": 4,
    }
    traces = [
        train_for_three_steps(
            forked_workers,
            run_config(random_model_of("qwen3"), overrides | {"generate_config.rank_map": kind}),
        )
        for kind in ("best", "default")
    ]

    assert traces[0].tokens == traces[1].tokens
    assert_equal_but_for_rounding(*traces)
    best, default = (set(trace.received) for trace in traces)
    # What is left: both sides pad the 211 tokens of the vocabulary to other sizes, and cut those.
    assert len(best) == len(default) == 1
    assert 0 < 20 * min(best) < min(default)
