"""Data of a step: prompts, responses and rewards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Rollouts
from mindrl.data.order import MixedOrder, PromptOrder
from mindrl.observability.metrics import Metrics
from mindrl.rollout.engine import Sampling
from mindrl.trainer.reward_manager import Rating, RewardManager
from mindrl.trainer.worker_handle import WorkerHandle


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Data that a step trains on."""

    prompts: Sequence[Prompt]
    rollouts: Rollouts
    rating: Rating
    metrics: Metrics = field(default_factory=dict)
    """Metrics about its collection."""
    probed: Rollouts | None = None
    """Other tokens, sampled with the trainer's current weights."""
    gap: Metrics = field(default_factory=dict)
    """Log-prob gap of other tokens, measured with the weights that sampled these."""


class Gathering(Protocol):
    """Source of each step's data."""

    def gather(self, step: int, check_interrupt: Callable[[], None]) -> Gathered:
        """Return the data of a step; `check_interrupt` raises if the run was asked to stop."""

    def learned(self, step: int) -> Metrics:
        """Record that a step was trained: the weights are new from now on."""

    def state(self, step: int) -> dict[str, Any]:
        """Return the state after a step that later steps depend on, besides their numbers.

        The step is the last one, or the one before if the last was abandoned.
        """

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue after a step; the state is empty if it was not stored."""


@dataclass(frozen=True, kw_only=True)
class Answering:
    """The prompts in their order, and the parts that answer and score them."""

    prompts: Sequence[Prompt]
    order: PromptOrder | MixedOrder
    workers: WorkerHandle
    sampling: Sampling
    rewards: RewardManager
    per_step: int
    """Prompts that a step trains on."""

    def draw(self, place: int, count: int) -> list[Prompt]:
        """Return `count` prompts from an index in the order; indices count from 0."""
        return [self.prompts[index] for index in self.order.indices(place, count)]

    def roll_out(
        self, prompts: Sequence[Prompt], step: int, answered: Sequence[Prompt] = ()
    ) -> Rollouts:
        """Generate responses with the current weights; `answered` are earlier prompts."""
        with self.rewards.timer("rollout"):
            self.workers.engines.publish(step - 1)
            return self.workers.generate_sequences(
                prompts, self.sampling, step=step, answered=answered
            )


@dataclass(frozen=True, kw_only=True)
class StepGroups:
    """One rollout per step, of exactly the prompts that the step trains on."""

    answering: Answering
    blocking: bool
    """Whether to score before other work, not concurrently."""

    def gather(self, step: int, check_interrupt: Callable[[], None]) -> Gathered:
        """Draw the prompts of a step, and generate responses."""
        answering, count = self.answering, self.answering.per_step
        prompts = answering.draw((step - 1) * count, count)
        rollouts = answering.roll_out(prompts, step)
        check_interrupt()
        rating = answering.rewards.compute(prompts, rollouts, blocking=self.blocking)
        return Gathered(prompts=prompts, rollouts=rollouts, rating=rating)

    def learned(self, step: int) -> Metrics:  # noqa: ARG002
        """Do nothing: the next generation fetches the weights."""
        return {}

    def state(self, step: int) -> dict[str, Any]:  # noqa: ARG002
        """Return an empty state: the prompts of a step follow from its number."""
        return {}

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Do nothing."""
