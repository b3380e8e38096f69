"""Workers that share layers, tokens of a sequence, or unequal batches, against one worker."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_workers import ForkedWorkers
from nightly import at_night_but
from test_layouts import Trace, assert_one_run, train_for_three_steps

from mindrl.config.run import RunConfig

pytestmark = pytest.mark.distributed

MakeConfig = Callable[..., RunConfig]
STAGES = "actor_config.pipeline_model_parallel_size"
WAYS: dict[str, dict[str, Any]] = {
    "PP2 to TP2": {STAGES: 2, "generate_config.infer_tensor_parallel_size": 2},
    "interleaved PP2 to DP2": {
        STAGES: 2,
        "actor_config.virtual_pipeline_model_parallel_size": 2,
        # Three micro-batches do not fill the second round.
        "actor_config.micro_batch_size": 3,
    },
    "stages of one layer and of three to TP2": {
        STAGES: 2,
        "actor_config.num_layer_list": [1, 3],
        "generate_config.infer_tensor_parallel_size": 2,
    },
    "CP2 to TP2": {
        "actor_config.context_parallel_size": 2,
        "generate_config.infer_tensor_parallel_size": 2,
    },
    "DP2 by tokens, all recomputed": {
        "rl_config.use_dynamic_bsz": True,
        "rl_config.max_packing_token_size": 64,
        "actor_config.recompute_granularity": "full",
        "actor_config.recompute_method": "uniform",
        "actor_config.recompute_num_layers": 1,
        "actor_config.logprob_chunk_tokens": 5,
    },
    "PP2 to stages": {STAGES: 2, "generate_config.infer_pipeline_parallel_size": 2},
    "TP2 to stages": {
        "actor_config.tensor_model_parallel_size": 2,
        "generate_config.infer_pipeline_parallel_size": 2,
    },
    "DP2 with padding": {"rl_config.use_remove_padding": False},
    "DP2 of PyTorch alone to TP2": {
        "actor_config.backend": "archon:d2",
        "generate_config.infer_tensor_parallel_size": 2,
    },
}
EVERY_CHANGE = ("TP2 to stages",)


@pytest.fixture(scope="module")
def alone(
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
    run_config: MakeConfig,
) -> Trace:
    """The run with one worker."""
    return train_for_three_steps(forked_workers, run_config(random_model_of("llama")))


@pytest.mark.parametrize("way", at_night_but(EVERY_CHANGE, WAYS))
def test_two_workers_equal_one_worker(
    way: str,
    alone: Trace,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
    run_config: MakeConfig,
) -> None:
    two = {"rl_config.actor_resource.num_npus": 2, "generate_config.verify_weights": "always"}
    config = run_config(random_model_of("llama"), two | WAYS[way])
    assert_one_run(train_for_three_steps(forked_workers, config), alone)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", [None, "archon:(attn:d2|ffn:d1e2)"])
def test_two_deterministic_runs_of_a_mixture_in_bfloat16_agree_to_the_bit(
    backend: str | None,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
    run_config: MakeConfig,
) -> None:
    overrides = {
        "rl_config.actor_resource.num_npus": 2,
        "rl_config.use_dynamic_bsz": True,
        "actor_config.moe_aux_loss_coeff": 0.01,
        "megatron_training.bf16": True,
        "megatron_training.npu_deterministic": True,
        "generate_config.infer_tensor_parallel_size": 2,
    }
    key = "expert_model_parallel_size" if backend is None else "backend"
    overrides[f"actor_config.{key}"] = backend or 2
    config = run_config(random_model_of("qwen3_moe"), overrides)
    first, second = (train_for_three_steps(forked_workers, config) for _ in range(2))
    assert first == second
    assert min(first.grad_norms) > 1e-3
