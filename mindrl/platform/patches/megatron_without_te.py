"""Megatron-core's router and multi-latent attention without Transformer Engine.

Upstream: megatron-core 0.13 to 0.16.1, of the attention 0.16.1 (checked with 0.16.1).
Reason: `moe_utils` asks whether `te_general_gemm` is None, but where Transformer Engine is missing
the name does not exist, and every call of a router raises NameError. Its layers are mocks there,
but `multi_latent_attention` believes that it is there, and asks whether a layer is an instance of a
mock: building the attention raises TypeError. It is no longer needed when the name is defined in
either case, and when the other module's HAVE_TE is false: tests/unit/platform checks for both.
"""

from importlib import import_module


def install() -> None:
    """Say that it is missing. A vendor's adaptor must have been installed before."""
    moe_utils = import_module("megatron.core.transformer.moe.moe_utils")
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # type: ignore[attr-defined]
    attention = import_module("megatron.core.transformer.multi_latent_attention")
    if not isinstance(attention.TELinear, type):
        attention.HAVE_TE = False  # type: ignore[attr-defined]
