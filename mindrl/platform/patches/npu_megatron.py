"""Megatron-core on Ascend: torch_npu and MindSpeed, imported before Megatron.

Upstream: MindSpeed core_r0.16.0 with megatron-core 0.16. Reason: MindSpeed adapts Megatron to
the NPU when `mindspeed.megatron_adaptor` is imported, and that has to happen first. Not run
here, where there is no NPU; the calls follow the published sources of torch_npu and MindSpeed.
"""

from importlib import import_module


def install() -> None:
    """Import the vendor's adaptors in the order that they ask for."""
    import_module("torch_npu")
    import_module("mindspeed.megatron_adaptor")
