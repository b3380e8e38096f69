"""What travels between the tests of the reshard and the processes that they fork.

Without Megatron and vLLM: the test process must be able to read it.
"""

from dataclasses import dataclass, field
from typing import Literal

from mindrl.layouts.layout import RolloutLayout, TrainLayout

Answer = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens and their log-probs, in nats."""
SHARD_BYTES = 600_000
"""Largest file of an export."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A model on its way between two layouts."""

    folder: str
    train: TrainLayout
    rollout: RolloutLayout
    bucket_bytes: int = 1 << 20
    backend: Literal["megatron", "archon", "fsdp"] = "megatron"
    grouped: bool = False
    """The experts of a rank lie in two matrices of each layer."""


@dataclass(kw_only=True)
class Arrived:
    """What one rank saw of the rollout engine after each reshard."""

    answers: dict[str, list[Answer]] = field(default_factory=dict)
    """By the moment, to all prompts."""
    fresh: dict[str, list[Answer]] = field(default_factory=dict)
    """Of an engine that loaded the folder that was exported at that moment."""
    parameters_left: int = 0
    """Bytes of training weights that were still on the device after a reshard."""
    received: int = 0
    needed: int = 0
