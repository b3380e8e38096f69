"""The backends that strings such as `megatron:d4t2` may name, and those that run here."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

TrainingBackend = Literal["megatron", "archon", "fsdp"]
TRAINING_BACKENDS: tuple[TrainingBackend, ...] = get_args(TrainingBackend)
LETTERS = "dptcev"
"""Data, pipeline, tensor, context and expert parallel, virtual chunks; 1 is legal everywhere."""
TRAINING_BACKEND: TrainingBackend = "megatron"
"""The one that trains where nothing is said; the package that it comes with has the same name."""
ROLLOUT_BACKEND = "vllm"
"""The one that generates here; so is its package called."""
SERVED_BACKENDS = ("sglang",)
"""Those that generate in servers alone, which somebody else has started."""
TRAINING_ENGINE = "Megatron"
"""The first of them in the words of a sentence."""


def training_backend_of(text: str) -> TrainingBackend:
    """Return the backend that the string of an engine that trains begins with."""
    name = text.partition(":")[0]
    return next((each for each in TRAINING_BACKENDS if each == name), TRAINING_BACKEND)


@dataclass(frozen=True, kw_only=True)
class BackendRules:
    """What may stand behind the name of a backend."""

    trains: bool
    letters: str
    """Of one list for the whole model."""
    attn: str = ""
    """Letters behind `attn:`; none where experts have no list of their own."""
    ffn: str = ""
    beside: str = ""
    """Letters whose sizes are keys of their own, which stand beside a string."""


BACKENDS: Mapping[str, BackendRules] = {
    TRAINING_BACKEND: BackendRules(trains=True, letters=LETTERS, attn="dptcv", ffn="dpte"),
    "archon": BackendRules(trains=True, letters="dptce", attn="dptc", ffn="dpte", beside="v"),
    "fsdp": BackendRules(trains=True, letters="dtc"),
    ROLLOUT_BACKEND: BackendRules(trains=False, letters="dpte"),
    "sglang": BackendRules(trains=False, letters="dpt"),
}
