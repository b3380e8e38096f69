"""Names by which mindrl has the experts that vLLM and vllm-ascend choose."""

from mindrl.platform.npu_versions import VLLM, VLLM_ASCEND
from npu_contract.entry import Entry

_USER = "mindrl/platform/engine_routers.py"
_BASE = "vllm.model_executor.layers.fused_moe.router.base_router.BaseRouter"
ROUTERS = (
    *(
        Entry(pin=VLLM, kind="name", name=name, used_by=_USER)
        for name in (
            _BASE,
            f"{_BASE}.set_capture_fn",
            "vllm.config.ModelConfig.enable_return_routed_experts",
        )
    ),
    Entry(
        pin=VLLM_ASCEND,
        kind="name",
        name="vllm_ascend.ops.fused_moe.fused_moe_0_23_0.AscendFusedMoE",
        used_by=_USER,
    ),
    Entry(
        pin=VLLM_ASCEND,
        kind="call",
        name="getattr",
        values=("_ascend_routed_experts_capturer",),
        used_by=_USER,
        spelled="_ascend_routed_experts_capturer",
    ),
)
