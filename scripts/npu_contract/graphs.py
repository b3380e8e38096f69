"""Names of vLLM's decoding graphs that mindrl uses; vllm-ascend reads the same configuration."""

from mindrl.platform.npu_versions import VLLM, VLLM_ASCEND
from npu_contract.entry import Entry

_USED = {
    "mindrl/rollout/vllm/options.py": (
        "CompilationConfig.cudagraph_mode",
        "CompilationConfig.cudagraph_capture_sizes",
        "CompilationConfig.mode",
        "CompilationMode.NONE",
    ),
    "mindrl/config/generate.py": (
        "CUDAGraphMode.FULL_DECODE_ONLY",
        "CUDAGraphMode.PIECEWISE",
        "CUDAGraphMode.FULL_AND_PIECEWISE",
    ),
}
_PATCH = "mindrl/platform/patches/npu_graphs.py"
_WORKER = "vllm_ascend.worker"
_RUNNER = f"{_WORKER}.model_runner_v1.NPUModelRunner"
GRAPHS = (
    *(
        Entry(pin=VLLM, kind="name", name=f"vllm.config.compilation.{name}", used_by=used_by)
        for used_by, names in _USED.items()
        for name in names
    ),
    *(
        Entry(pin=VLLM_ASCEND, kind="module", name=f"{_WORKER}.{name}", used_by=_PATCH)
        for name in ("worker", "model_runner_v1")
    ),
    *(
        Entry(pin=VLLM_ASCEND, kind="name", name=name, used_by=_PATCH)
        for name in (_RUNNER, f"{_RUNNER}._use_aclgraph")
    ),
)
