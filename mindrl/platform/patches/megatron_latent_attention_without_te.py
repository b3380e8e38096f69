"""Megatron-core's multi-latent attention without Transformer Engine.

Upstream: megatron-core 0.16.1 (the one checked). Reason: where Transformer Engine is missing its
layers are mocks, but `multi_latent_attention` believes that it is there, and asks whether a layer
is an instance of a mock: building the attention raises TypeError. It is no longer needed when
that module's HAVE_TE is false there: tests/unit/platform checks for it.
"""

from importlib import import_module


def install() -> None:
    """Say that it is missing. A vendor's adaptor must have been installed before."""
    attention = import_module("megatron.core.transformer.multi_latent_attention")
    if not isinstance(attention.TELinear, type):
        attention.HAVE_TE = False  # type: ignore[attr-defined]
