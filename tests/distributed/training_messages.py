"""What travels between the tests of the training side and the processes that they fork.

Without Megatron: the test process must be able to read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from mindrl.algorithms.losses import Loss
from mindrl.algorithms.policy_loss import PolicyLoss
from mindrl.algorithms.token_loss import resolve_token_loss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Minibatch
from mindrl.config.rl import RLConfig
from mindrl.layouts.layout import TrainLayout

LOSS = PolicyLoss(
    tokens=resolve_token_loss(RLConfig(mini_batch_size=1)),
    kl_kind="k3",
    kl_coef=0.1,
    entropy_coef=0.01,
)
OPTIMIZER: Mapping[str, Any] = {
    "lr": 1e-2,
    "min_lr": 0.0,
    "lr_decay_style": "constant",
    "updates": 2,
    "weight_decay": 0.1,
    "clip_grad": 0.05,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    # Wide, so that the step of a gradient near zero does not hang on its rounding.
    "adam_eps": 1e-2,
    "use_distributed_optimizer": True,
}
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
    backend: Literal["megatron", "archon", "fsdp"] = "megatron"
    """With `fsdp` transformers' network is taken even of a family that mindrl has one of; with
    `archon` only mindrl's own."""
    spec: str = ""
    """Of a network of the user's own."""
    freezes_tower: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    """More of `ModelSettings`: its own arguments, and keys of its sections."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """Updates to take."""

    minibatches: list[Minibatch]
    loss: Loss[Any]
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


@dataclass(frozen=True, kw_only=True)
class Life:
    """What a rank reads of its share, and what it learns of its minibatches."""

    logprobs_BT: Tensor | None
    """Before it learns; None without the head."""
    metrics: list[dict[str, float]]
    weights: Weights
    """At the end."""
    graphs: int
    """That torch has compiled in this process by then."""


@dataclass(frozen=True, kw_only=True)
class BothWays:
    """One update with a pass before it, and one without."""

    recomputed: tuple[dict[str, float], Weights]
    found: tuple[dict[str, float], Weights]
    same_logprobs: bool
    """The update says the log-probs of the pass, to the bit; of ranks without the head always."""
