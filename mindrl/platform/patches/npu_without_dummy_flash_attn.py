"""No module `flash_attn` unless the package is installed.

Upstream: MindSpeed core_r0.16.0 with vllm 0.23.0. Reason: MindSpeed puts a dummy `flash_attn` into
`sys.modules`. vLLM's rotary embedding mistakes it for the package and imports `flash_attn.ops`,
which raises while the engine is built, for every model with rotary embeddings. No longer needed
when MindSpeed makes no such dummy, or vLLM imports nothing of that name:
scripts/check_npu_contract.py checks both. With `MINDSPEED` set, tests/npu_simulated builds the
engine without this patch and expects the error.
"""

import sys


def install() -> None:
    """Remove the dummy, a module without a loader; an installed package stays."""
    for name in [name for name in sys.modules if name.split(".")[0] == "flash_attn"]:
        spec = sys.modules[name].__spec__
        if spec is None or spec.loader is None:
            del sys.modules[name]
