"""Backends that strings such as `megatron:d4t2` may name, and those that run here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

TrainingBackend = Literal["megatron", "archon", "fsdp"]
TRAINING_BACKENDS: tuple[TrainingBackend, ...] = get_args(TrainingBackend)
LETTERS = "dptcev"
"""Data, pipeline, tensor, context and expert parallel, virtual chunks; 1 is always legal."""
TRAINING_BACKEND: TrainingBackend = "megatron"
"""Default training backend; its package has the same name."""
ROLLOUT_BACKEND = "vllm"
"""Rollout backend of this version; its package has the same name."""
SERVED_BACKENDS = ("sglang",)
"""Backends that only generate in servers, which the user starts."""
TRAINING_ENGINE = "Megatron"
"""Name of the default training backend in messages."""


def training_backend_of(text: str) -> TrainingBackend:
    """Return the training backend that a string starts with."""
    name = text.partition(":")[0]
    return next((each for each in TRAINING_BACKENDS if each == name), TRAINING_BACKEND)


@dataclass(frozen=True, kw_only=True)
class BackendRules:
    """What may follow the name of a backend."""

    trains: bool
    letters: str
    """Letters of a single list for the whole model."""
    attn: str = ""
    """Letters after `attn:`; empty if experts have no separate list."""
    ffn: str = ""
    own_keys: str = ""
    """Letters whose sizes have separate keys next to a string."""


BACKENDS: Mapping[str, BackendRules] = {
    TRAINING_BACKEND: BackendRules(trains=True, letters=LETTERS, attn="dptcv", ffn="dpte"),
    "archon": BackendRules(trains=True, letters="dptce", attn="dptc", ffn="dpte", own_keys="v"),
    "fsdp": BackendRules(trains=True, letters="dtc"),
    ROLLOUT_BACKEND: BackendRules(trains=False, letters="dpte"),
    "sglang": BackendRules(trains=False, letters="dpt"),
}
