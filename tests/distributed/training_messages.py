"""What travels between the tests of the training side and the processes that they fork.

Without Megatron: the test process must be able to read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mindrl.algorithms.losses import PolicyLoss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Minibatch
from mindrl.layouts.layout import TrainLayout

Weights = dict[str, Tensor]
"""Local tensors of a rank by their local names."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and how it is laid out."""

    folder: str
    layout: TrainLayout = field(default_factory=TrainLayout)
    sequence_parallel: bool = False
    temperature: float = 1.0
    bf16: bool = False
    shares: tuple[int, ...] | None = None
    """Sequences of each replica; None deals equal shares."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """More of `ModelSettings`: its own arguments, and keys of its sections."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """Updates to take."""

    minibatches: list[Minibatch]
    loss: PolicyLoss
    optimizer: Mapping[str, Any]
    """Keys of the same sections, and `updates`."""
    micro_batching: MicroBatching
    swap: bool = False
    """Everything leaves the device behind each update, and comes back."""


@dataclass(frozen=True, kw_only=True)
class Updated:
    """What a few updates did."""

    metrics: list[dict[str, float]]
    weights: Weights
    device_bytes: list[int]
    """Storage of all regions while they were off the device, for each swap."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a rank says of a model before and while it is trained."""

    logits_BTV: Tensor
    """Of this rank's tokens and part of the vocabulary; empty before the last stage."""
    metrics: list[dict[str, float]]
