"""Megatron-core on Ascend: torch_npu and MindSpeed, imported before Megatron.

Upstream: MindSpeed core_r0.16.0 with megatron-core 0.16. Reason: MindSpeed adapts Megatron to
the NPU when `mindspeed.megatron_adaptor` is imported, and that has to happen first. Its patches
follow command-line arguments: it parses `sys.argv` at the import, and takes the real settings
by `repatch` before the model-parallel groups are made. Run over a simulated CANN alone, by
tests/npu_simulated, and with MindSpeed's own sources only where `MINDSPEED` names them.
"""

import sys
from collections.abc import Mapping
from importlib import import_module


def install() -> None:
    """Import the vendor's adaptors in the order that they ask for."""
    import_module("torch_npu")
    arguments = sys.argv[:]
    try:
        # The arguments of this process are Ray's and mean nothing to MindSpeed.
        del sys.argv[1:]
        import_module("mindspeed.megatron_adaptor")
    finally:
        sys.argv[:] = arguments


def repatch(settings: Mapping[str, object]) -> None:
    """Tell MindSpeed the layout and the kind of experts, in the words of Megatron's arguments."""
    # Its grouped experts read `fp8`, which only Megatron's own command line would have set.
    import_module("mindspeed.megatron_adaptor").repatch({"fp8": None, **settings})
