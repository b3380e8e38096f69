"""The backends that an allocation string may name, and the dimensions that each one has."""

from collections.abc import Mapping
from dataclasses import dataclass

LETTERS = "dptcev"
"""Every dimension; a size of 1 is legal for each backend."""


@dataclass(frozen=True, kw_only=True)
class BackendRules:
    """What may stand behind the name of a backend.

    Dimensions are letters: d data, p pipeline, t tensor, c context, e expert parallel, v virtual
    pipeline chunks.
    """

    trains: bool
    letters: str
    """Of one list for the whole model."""
    dense_letters: str = ""
    """Behind `attn:`; empty where experts have no list of their own."""
    expert_letters: str = ""
    """Behind `ffn:`."""


BACKENDS: Mapping[str, BackendRules] = {
    "megatron": BackendRules(
        trains=True, letters=LETTERS, dense_letters="dptcv", expert_letters="dpte"
    ),
    "archon": BackendRules(
        trains=True, letters="dptce", dense_letters="dptc", expert_letters="dpte"
    ),
    "fsdp": BackendRules(trains=True, letters="dtc"),
    "vllm": BackendRules(trains=False, letters="dpte"),
    "sglang": BackendRules(trains=False, letters="dpt"),
}


def example_of(backend: str) -> str:
    """Return strings of a backend that can be read; Megatron's for an unknown one."""
    match backend:
        case "vllm" | "sglang":
            return f"{backend}:d2t4"
        case "fsdp":
            return "fsdp:d4t2"
    known = backend if backend in BACKENDS else "megatron"
    return f"{known}:d4p2t2 or {known}:(attn:d4t2|ffn:d2e4)"
