"""Keys of fused layers: MindSpeed reads them and replaces functions of Megatron-core."""

from mindrl.platform.npu_versions import MINDSPEED
from npu_contract.entry import Entry

_WORKER = "mindrl/launch/worker.py"
_REPLACED = {
    "use_fused_swiglu": "fusions.fused_bias_swiglu.SwiGLUFunction",
    "use_fused_rotary_pos_emb": "models.common.embeddings.rope_utils.apply_rotary_pos_emb",
}
FUSED_LAYERS = (
    *(
        Entry(pin=MINDSPEED, kind="setting", name=key, used_by=_WORKER)
        for key in ("use_fused_rmsnorm", *_REPLACED)
    ),
    *(
        Entry(
            pin=MINDSPEED,
            kind="call",
            name="patch_manager.register_patch",
            values=(f"megatron.core.{replaced}",),
            used_by=_WORKER,
            spelled=key,
        )
        for key, replaced in _REPLACED.items()
    ),
)
