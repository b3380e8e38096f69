"""What travels between the tests of value heads and the processes that they fork.

Without Megatron: the test process must be able to read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from training_messages import Case, Course, Weights

from mindrl.algorithms.value_loss import ValueLoss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import CriticMinibatch
from mindrl.batch.sequences import Logprobs, SequenceScores, Values


@dataclass(frozen=True, kw_only=True)
class CriticCourse:
    """Updates of a critic to take."""

    minibatches: list[CriticMinibatch]
    loss: ValueLoss
    optimizer: Mapping[str, Any]
    """As of a `Course`."""
    micro_batching: MicroBatching


@dataclass(frozen=True, kw_only=True)
class ValueTrial:
    """A value model, and what is to be done with it once it has said what it thinks."""

    case: Case
    head_seed: int | None = None
    course: CriticCourse | None = None
    export_to: str | None = None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a rank says of a value model: None before the last stage."""

    values: Values | None
    rewards: SequenceScores | None
    head: Tensor | None
    """[1, H], before any update; None before the last stage."""
    metrics: list[dict[str, float]]
    weights: Weights


@dataclass(frozen=True, kw_only=True)
class Cast:
    """The roles of a run, each with a layout of its own."""

    actor: Case
    critic: Case
    reference: Case
    actor_course: Course
    critic_course: CriticCourse


@dataclass(frozen=True, kw_only=True)
class Played:
    """What the roles said on a rank, in the order in which they were asked."""

    logprobs: list[Logprobs | None] = field(default_factory=list)
    ref_logprobs: list[Logprobs | None] = field(default_factory=list)
    values: list[Values | None] = field(default_factory=list)
    actor_metrics: list[dict[str, float]] = field(default_factory=list)
    critic_metrics: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Evening:
    """The same roles alone and together, as one rank saw them."""

    alone: Played
    together: Played
    groups_of_an_equal_layout: int
    """Process groups that were made when the actor's layout was asked for once more."""
    sum_of_others: float
    """Of the ranks in a group of two that somebody else made before all of this."""
