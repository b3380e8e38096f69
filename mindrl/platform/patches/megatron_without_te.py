"""Megatron-core's router and multi-latent attention without Transformer Engine.

Upstream: megatron-core 0.13 to 0.16.1, for attention 0.16.1 (checked with 0.16.1).
Reason: `moe_utils` tests whether `te_general_gemm` is None, but without Transformer Engine the name
is undefined, and every call of a router raises NameError. Its layers are then mocks, but
`multi_latent_attention` assumes that it is installed and tests whether a layer is an instance of a
mock: building the attention raises TypeError. No longer needed when the name is always defined and
the other module's HAVE_TE is false: tests/unit/platform checks for both.
"""

from importlib import import_module


def install() -> None:
    """Mark Transformer Engine as missing. Install a vendor's adaptor first."""
    moe_utils = import_module("megatron.core.transformer.moe.moe_utils")
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None  # type: ignore[attr-defined]
    attention = import_module("megatron.core.transformer.multi_latent_attention")
    if not isinstance(attention.TELinear, type):
        attention.HAVE_TE = False  # type: ignore[attr-defined]
