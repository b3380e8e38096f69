"""What travels between the tests of the training side and the processes that they fork.

Without Megatron: the test process must be able to read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mindrl.algorithms.grpo import GrpoLoss
from mindrl.batch.experience import Minibatch


@dataclass(frozen=True, kw_only=True)
class Side:
    """A model and how it is laid out: all ranks of the group are tensor-parallel."""

    folder: str
    sequence_parallel: bool = False
    temperature: float = 1.0
    bf16: bool = False


@dataclass(frozen=True, kw_only=True)
class Course:
    """Updates to take."""

    minibatches: list[Minibatch]
    loss: GrpoLoss
    optimizer: Mapping[str, Any]
    """Arguments of `OptimizerSettings`."""
    micro_batch_size: int
    swap: bool = False
    """Everything leaves the device behind each update, and comes back."""


@dataclass(frozen=True, kw_only=True)
class Updated:
    """What a few updates did."""

    metrics: list[dict[str, float]]
    weights: dict[str, Tensor]
    """Logical tensors, whole."""
    device_bytes: list[int]
    """Storage of all regions while they were off the device, for each swap."""


@dataclass(frozen=True, kw_only=True)
class OffloadFacts:
    """What was seen while three tensors over two storages went and came back."""

    out_bytes: int
    bytes_while_out: int
    again_bytes: int
    in_bytes: int
    kept: list[list[float]]
    share_storage: bool
    dropped_bytes: int
    dropped: list[float]
    host_copies: int
