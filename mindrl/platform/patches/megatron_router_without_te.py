"""Megatron-core's router of a mixture of experts without Transformer Engine.

Upstream: megatron-core 0.13 to 0.16.1 (checked with 0.16.1). Reason: `moe_utils` asks whether
`te_general_gemm` is None, but where Transformer Engine is missing the name does not exist, and
every call of a router raises NameError. It is no longer needed when the name is defined in
either case: tests/unit/platform checks for it.
"""

from importlib import import_module


def install() -> None:
    """Define the name where it is missing. A vendor's adaptor must have been installed before."""
    moe_utils = import_module("megatron.core.transformer.moe.moe_utils")
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # type: ignore[attr-defined]
