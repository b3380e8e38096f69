"""The tiny model of the self-test, and the plan of its run."""

from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

from mindrl.config.load import load_run_config
from mindrl.platform.device import Platform
from mindrl.preflight.run_shardings import RunPlan, unordered_shardings

LIMIT_SECONDS = 600
"""Limit for the start of the workers, and for each trial."""
STOP_TOKEN = 1
_VOCABULARY = 512
_TOKENS = 64


def make_model(folder: Path) -> None:
    """Save a network with 3 million random weights, without a tokenizer."""
    transformers_logging.disable_progress_bar()
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=_VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=_TOKENS,
        tie_word_embeddings=False,
        # Large, so that its distributions are far from uniform.
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=STOP_TOKEN,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    GenerationConfig(eos_token_id=STOP_TOKEN).save_pretrained(folder)


def self_test_plan(
    model: Path, platform: Platform, devices: int, *, eager: bool = False
) -> RunPlan:
    """Plan a run on all devices, in which trainer and rollout shard the model differently.

    An even number of devices trains with a tensor-parallel size of 2. A multiple of 4 also trains
    in two stages and rolls out with a tensor-parallel size of 2. Devices compute in bfloat16, which
    the fused kernels require, and the CPU in float32. Unless it is `eager`, the engine captures
    graphs before it receives its weights: one that keeps the former weights makes a gap.
    """
    halves, quarters = (2 if devices % ways == 0 else 1 for ways in (2, 4))
    on_host = platform.kind == "cpu"
    values: dict[str, dict[str, Any]] = {
        "megatron_training": {
            "train_iters": 1,
            "global_batch_size": devices,
            "seq_length": _TOKENS,
            "data_path": "none",
            "bf16": not on_host,
            "distributed_timeout_minutes": 2,
        },
        "actor_config": {
            "load": str(model),
            "micro_batch_size": 8,
            "lr": 1e-6,
            "tensor_model_parallel_size": halves,
            "pipeline_model_parallel_size": quarters,
        },
        "rl_config": {
            "device": platform.kind,
            "actor_resource": {"num_npus": devices, "npus_per_node": devices},
            "mini_batch_size": devices,
            "max_prompt_length": _TOKENS // 2,
            "worker_start_timeout_seconds": LIMIT_SECONDS,
            "worker_call_timeout_seconds": LIMIT_SECONDS,
            "heartbeat_timeout_seconds": LIMIT_SECONDS // 2,
        },
        "generate_config": {
            "dtype": "float32" if on_host else "bfloat16",
            "max_model_len": _TOKENS,
            "max_num_seqs": 64,
            "kv_cache_mib": 64,
            "infer_tensor_parallel_size": quarters,
            "verify_weights": "always",
            "enforce_eager": eager or on_host,
            "reshard_timeout_seconds": 60,
            "sampling_config": {"max_tokens": _TOKENS // 2},
        },
    }
    return unordered_shardings(load_run_config(values)).plan
