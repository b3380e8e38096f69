"""Names of vLLM's decoding graphs that mindrl uses; vllm-ascend reads the same configuration."""

from mindrl.platform.npu_versions import VLLM
from npu_contract.entry import Entry

_USED = {
    "mindrl/rollout/vllm/options.py": (
        "CompilationConfig.cudagraph_mode",
        "CompilationConfig.cudagraph_capture_sizes",
    ),
    "mindrl/config/generate.py": (
        "CUDAGraphMode.FULL_DECODE_ONLY",
        "CUDAGraphMode.PIECEWISE",
        "CUDAGraphMode.FULL_AND_PIECEWISE",
    ),
}
GRAPHS = tuple(
    Entry(pin=VLLM, kind="name", name=f"vllm.config.compilation.{name}", used_by=used_by)
    for used_by, names in _USED.items()
    for name in names
)
