"""What a step trains on: prompts, the responses to them, and what those are worth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Rollouts
from mindrl.data.order import MixedOrder, PromptOrder
from mindrl.observability.metrics import Metrics
from mindrl.rollout.engine import Sampling
from mindrl.trainer.colocated_actor import ColocatedActor
from mindrl.trainer.reward_manager import Rating, RewardManager


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What a step trains on."""

    prompts: Sequence[Prompt]
    rollouts: Rollouts
    rating: Rating
    metrics: Metrics = field(default_factory=dict)
    """Of how it came together."""
    probed: Rollouts | None = None
    """Other tokens than these, drawn with the trainer's present weights."""
    gap: Metrics = field(default_factory=dict)
    """The log-prob gap of other tokens than these, measured with the weights that drew these."""


class Gathering(Protocol):
    """Where each step gets it from."""

    def gather(self, step: int, heed: Callable[[], None]) -> Gathered:
        """Return what a step trains on; `heed` raises where the run has been asked to stop."""

    def learned(self, step: int) -> Metrics:
        """Take note that a step has learned: from now on there are other weights."""

    def state(self, step: int) -> dict[str, Any]:
        """Return what the steps behind one depend on besides their numbers.

        It is the last that was gathered, or the one before, where the last has been given up.
        """

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Go on behind a step; the state is empty where it was not kept."""


@dataclass(frozen=True, kw_only=True)
class Answering:
    """The prompts of the data in their order, and who answers and rates them."""

    prompts: Sequence[Prompt]
    order: PromptOrder | MixedOrder
    workers: ColocatedActor
    sampling: Sampling
    rewards: RewardManager
    per_step: int
    """Prompts that a step trains on."""

    def draw(self, place: int, count: int) -> list[Prompt]:
        """Return so many prompts from a place of the order on; places count from 0."""
        return [self.prompts[index] for index in self.order.indices(place, count)]

    def roll_out(
        self, prompts: Sequence[Prompt], step: int, answered: Sequence[Prompt] = ()
    ) -> Rollouts:
        """Answer prompts with the present weights, after those of the step that were answered."""
        with self.rewards.timer("rollout"):
            self.workers.engines.publish(step - 1)
            return self.workers.generate_sequences(
                prompts, self.sampling, step=step, answered=answered
            )


@dataclass(frozen=True, kw_only=True)
class StepGroups:
    """Trains on whatever is answered: one rollout of as many prompts as a step has."""

    answering: Answering
    blocking: bool
    """Rate before anything else is done, and not beside it."""

    def gather(self, step: int, heed: Callable[[], None]) -> Gathered:
        """Take the prompts of a step, and answer them."""
        answering, count = self.answering, self.answering.per_step
        prompts = answering.draw((step - 1) * count, count)
        rollouts = answering.roll_out(prompts, step)
        heed()
        rating = answering.rewards.compute(prompts, rollouts, blocking=self.blocking)
        return Gathered(prompts=prompts, rollouts=rollouts, rating=rating)

    def learned(self, step: int) -> Metrics:  # noqa: ARG002
        """Do nothing: whoever answers next asks for the weights."""
        return {}

    def state(self, step: int) -> dict[str, Any]:  # noqa: ARG002
        """Return nothing: the prompts of a step follow from its number."""
        return {}

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Do nothing."""
