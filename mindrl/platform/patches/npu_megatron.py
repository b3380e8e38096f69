"""Megatron-core on Ascend: torch_npu and MindSpeed, imported before Megatron.

Upstream: MindSpeed core_r0.16.0 with megatron-core 0.16. Reason: MindSpeed adapts Megatron to the
NPU when `mindspeed.megatron_adaptor` is imported, which must happen first. Its patches depend on
command-line arguments: it parses `sys.argv` at import, and accepts the real settings by `repatch`
before the model-parallel groups are created. Tested on a simulated CANN only, by
tests/npu_simulated, and with MindSpeed's own sources only if `MINDSPEED` is set.
"""

import sys
from collections.abc import Mapping
from importlib import import_module


def install() -> None:
    """Import the vendor's adaptors in the required order."""
    import_module("torch_npu")
    arguments = sys.argv[:]
    try:
        # The arguments of this process are Ray's; MindSpeed must not parse them.
        del sys.argv[1:]
        import_module("mindspeed.megatron_adaptor")
    finally:
        sys.argv[:] = arguments


def repatch(settings: Mapping[str, object]) -> None:
    """Pass the layout and the kind of experts to MindSpeed, as Megatron's arguments."""
    # Its grouped experts read `fp8`, which only Megatron's own command line would set.
    import_module("mindspeed.megatron_adaptor").repatch({"fp8": None, **settings})
