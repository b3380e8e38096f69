"""Names of vllm-ascend by which its engine keeps matrices in int8."""

from mindrl.platform.npu_versions import VLLM_ASCEND
from npu_contract.entry import Entry

_QUANTIZATION = "vllm_ascend.quantization"
_METHOD = f"{_QUANTIZATION}.methods.w8a8_dynamic.AscendW8A8DynamicLinearMethod"
_CONFIG = f"{_QUANTIZATION}.compressed_tensors_config.AscendCompressedTensorsConfig"
_SHARDS = "mindrl/rollout/vllm/shards.py"

INT8 = tuple(
    Entry(pin=VLLM_ASCEND, kind="name", name=name, used_by=used_by, spelled=text)
    for name, used_by, text in (
        (f"{_METHOD}.get_weight", _SHARDS, "torch.int8"),
        (
            f"{_METHOD}.get_perchannel_param",
            "mindrl/rollout/vllm/int8_rows.py",
            '"weight_offset"',
        ),
        (
            f"{_METHOD}.process_weights_after_loading",
            _SHARDS,
            "process_weights_after_loading",
        ),
        (_CONFIG, "mindrl/rollout/vllm/options.py", "compressed-tensors"),
    )
)
