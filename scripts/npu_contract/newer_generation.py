"""The contract with vllm-ascend 0.30: the pinned release's contract with the changes of 0.30.

mindrl's engine is tested with it over the simulated CANN, so it names the same things there.
"""

from collections.abc import Iterator
from dataclasses import replace

from mindrl.platform.npu_versions import (
    GENERATIONS,
    NEWER_VLLM,
    NEWER_VLLM_ASCEND,
    VLLM,
    VLLM_ASCEND,
)
from npu_contract.contract import ENTRIES
from npu_contract.entry import Entry

NEWER_PINS = NEWER_VLLM, NEWER_VLLM_ASCEND
_NEWER = {VLLM: NEWER_VLLM, VLLM_ASCEND: NEWER_VLLM_ASCEND}
_GONE = frozenset(
    {
        "VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE",
        "self._get_config_value",
        "vllm_ascend.ops.fused_moe.fused_moe_0_23_0.AscendFusedMoE",
        "_ascend_routed_experts_capturer",
        "vllm.config.ModelConfig.enable_return_routed_experts",
    }
)
"""Variables that became keys of `additional_config`, of which NZ and MC2 are only documented, and
what 0.23 needs because its layers choose experts without vLLM's routers."""
_EXPERTS = "vllm_ascend.ops.fused_moe.fused_moe.", "vllm_ascend.ops.fused_moe.routed_experts."
"""Module of the experts, before and now."""
_MOVED = (
    _EXPERTS,
    (
        ".quantization.compressed_tensors_config.",
        ".quantization.configs.compressed_tensors_config.",
    ),
    (".methods.w8a8_dynamic.", ".methods.w8a8.w8a8_dynamic."),
)
"""Modules before and now."""
_CASTS_GONE = (
    "AscendMLAImpl._process_weights_for_fused_mlapo",
    "_process_weights_for_fused_mlapo_a5",
    "_process_weights_for_fused_mlapo_a5_float",
)
_MORE_CASTS = (
    # For operators and loaders that nothing of mindrl turns on.
    "vllm_ascend.attention.mla_v1.AscendMLAImpl._process_weights_for_fused",
    "vllm_ascend.model_executor.offloader.prefetch._format_static_buffers_for_nz",
    "vllm_ascend.model_loader.netloader.executor.elastic_load._cast_tensor_to_fractal_nz",
    "vllm_ascend.utils.maybe_trans_nz_with_scale",
)
_ENGINE = "mindrl/platform/device_engine.py"


def _changed(entry: Entry) -> Entry:
    values = tuple(value.replace(*_EXPERTS) for value in entry.values)
    if entry.name == "transformers":
        values = (GENERATIONS[1].transformers,)
    if entry.kind == "casts":
        kept = (name for name in values if not name.endswith(_CASTS_GONE))
        values = (*kept, *_MORE_CASTS)
    name = entry.name
    for moved in _MOVED:
        name = name.replace(*moved)
    return replace(entry, pin=_NEWER[entry.pin], name=name, values=values)


def _entries() -> Iterator[Entry]:
    for entry in ENTRIES:
        # This vLLM no longer imports flash_attn, for which there is a patch.
        named = {entry.name, *entry.values}
        is_gone = not _GONE.isdisjoint(named) or entry.kind == "import"
        if entry.pin in _NEWER and not is_gone:
            yield _changed(entry)
    for owner, key in (("additional_config", "rl_config"), ("raw_rl_config", "enabled")):
        yield Entry(
            pin=NEWER_VLLM_ASCEND,
            kind="call",
            name=f"{owner}.get",
            values=(key,),
            used_by=_ENGINE,
            spelled=f'"{key}"',
        )
    for switch in ("enable_batch_invariant", "enable_training_consistency"):
        name = f"vllm_ascend.ascend_config.RlConfig.{switch}"
        yield Entry(pin=NEWER_VLLM_ASCEND, kind="name", name=name, used_by=_ENGINE)
    yield Entry(
        pin=NEWER_VLLM_ASCEND,
        kind="call",
        name="util.find_spec",
        values=("flash_attn_npu_v3",),
        used_by=_ENGINE,
        spelled='"flash_attn_npu_v3"',
    )
    yield Entry(
        pin=NEWER_VLLM_ASCEND,
        kind="name",
        name="vllm_ascend.batch_invariant.HAS_ASCENDC_BATCH_INVARIANT",
        used_by=_ENGINE,
        spelled='"batch_invariant_ops"',
    )
    yield Entry(
        pin=NEWER_VLLM,
        kind="name",
        name="vllm.LLM",
        used_by=_ENGINE,
        passed_on_to="vllm.engine.arg_utils.EngineArgs",
        arguments=("additional_config", "block_size", "enable_chunked_prefill"),
        spelled="additional_config",
    )


NEWER_ENTRIES: tuple[Entry, ...] = tuple(_entries())
