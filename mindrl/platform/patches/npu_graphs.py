"""vllm-ascend must prepare graphs of an engine that does not compile its model.

Upstream: vllm-ascend 0.23.0.post1 and 0.30.0rc2. Reason: `NPUModelRunner._use_aclgraph` is false
unless vLLM compiles the model, which it cannot with MindSpeed, and then the parameters of graphs
are not prepared: a capture of whole decode steps fails, in 0.30 only with latent attention. No
longer needed when the function ignores `compilation_config.mode`: tests/npu_simulated checks it.
"""

from importlib import import_module
from typing import Any


def install() -> None:
    """Let an engine prepare graphs whenever it will capture some."""
    # First: it imports the patches of vLLM.
    import_module("vllm_ascend.worker.worker")
    runner = import_module("vllm_ascend.worker.model_runner_v1").NPUModelRunner
    runner._use_aclgraph = _captures


def _captures(engine: Any) -> bool:
    none = import_module("vllm.config").CUDAGraphMode.NONE
    captured = engine.compilation_config.cudagraph_mode != none
    return bool(captured and not engine.model_config.enforce_eager)
