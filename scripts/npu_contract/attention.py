"""Names of Ascend's fused attention and norm that mindrl uses."""

from mindrl.platform.npu_versions import TORCH_NPU
from npu_contract.entry import Entry

_ATTENTION = "mindrl/platform/attention.py"
_BLOCKS = "mindrl/platform/block_attention.py"
_OPERATOR = "torch_npu.npu_fusion_attention"
_ENDS = "actual_seq_qlen", "actual_seq_kvlen"


def _described(used_by: str, argument: str, value: str, *, spelled: str) -> Entry:
    values = argument, value
    return Entry(
        pin=TORCH_NPU,
        kind="format",
        name=_OPERATOR,
        values=values,
        used_by=used_by,
        spelled=spelled,
    )


NORM = Entry(
    pin=TORCH_NPU,
    kind="operator",
    name="torch_npu.npu_rms_norm",
    used_by="mindrl/platform/fused_layers.py",
    arguments=("self", "gamma", "epsilon"),
)
ATTENTION = (
    Entry(
        pin=TORCH_NPU,
        kind="operator",
        name=_OPERATOR,
        used_by=_ATTENTION,
        arguments=(
            "query",
            "key",
            "value",
            "head_num",
            "input_layout",
            "atten_mask",
            "scale",
            "keep_prob",
            *_ENDS,
            "sparse_mode",
        ),
    ),
    _described(_ATTENTION, "input_layout", "TND", spelled='"TND"'),
    _described(_ATTENTION, "sparse_mode", "3: rightDownCausal", spelled="sparse_mode=3"),
    Entry(
        pin=TORCH_NPU,
        kind="operator",
        name="torch.ops.npu.npu_fusion_attention_grad",
        used_by=_BLOCKS,
        arguments=(
            *("query", "key", "value", "dy", "head_num", "input_layout"),
            *("atten_mask", "softmax_max", "softmax_sum", "attention_in"),
            *("scale_value", "keep_prob", *_ENDS, "sparse_mode"),
        ),
    ),
    _described(_BLOCKS, "sparse_mode", "0: defaultMask", spelled='"sparse_mode": 0'),
)
