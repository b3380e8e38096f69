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
GRAPHS = tuple(
    Entry(pin=VLLM, kind="name", name=f"vllm.config.compilation.{name}", used_by=used_by)
    for used_by, names in _USED.items()
    for name in names
) + tuple(
    Entry(
        pin=VLLM_ASCEND,
        kind=kind,
        name=f"vllm_ascend.worker.{name}",
        used_by="mindrl/platform/patches/npu_graphs.py",
    )
    for kind, name in (
        ("module", "worker"),
        ("module", "model_runner_v1"),
        ("name", "model_runner_v1.NPUModelRunner"),
        ("name", "model_runner_v1.NPUModelRunner._use_aclgraph"),
    )
)
