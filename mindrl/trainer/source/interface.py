"""Data of a step, and the interface of its sources."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Rollouts
from mindrl.data.order import MixedOrder, PromptOrder
from mindrl.observability.metrics import Metrics
from mindrl.rollout.engine import Sampling
from mindrl.trainer.conversation_samples import ShownConversations
from mindrl.trainer.engine_rounds import OnCompleted
from mindrl.trainer.reward_manager import Rating, RewardManager
from mindrl.trainer.source.turns import ConversationTurns
from mindrl.trainer.worker_handle import Watched, WorkerHandle

DataT = TypeVar("DataT")
"""Data of a step."""


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Data that a step trains on: prompts, responses and rewards."""

    prompts: Sequence[Prompt]
    rollouts: Rollouts
    rating: Rating
    metrics: Metrics = field(default_factory=dict)
    """Metrics about collecting the data."""
    probed: Rollouts | None = None
    """Other tokens, sampled with the trainer's current weights."""
    gap: Metrics = field(default_factory=dict)
    """Log-prob gap of other tokens, measured by the engines that sampled these responses."""
    conversations: ShownConversations | None = None
    """Conversations of the responses, for people to read. None without environments."""


class Source(ABC, Generic[DataT]):
    """Source of each step's data, which by default depends only on the number of the step."""

    @abstractmethod
    def next(self, step: int, check_interrupt: Callable[[], None]) -> DataT:
        """Return the data of a step; `check_interrupt` raises if the run was asked to stop."""

    def trained(self, step: int) -> Metrics:  # noqa: ARG002
        """Count a step as trained; engines that run ahead receive its weights. Return metrics."""
        return {}

    def state(self, step: int) -> dict[str, Any]:  # noqa: ARG002
        """Return the state after a step that later steps depend on, except their numbers.

        The step is the last one, or the one before if the last was abandoned.
        """
        return {}

    def load_state(self, step: int, state: Mapping[str, Any]) -> None:
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
    round_steps: int = 32
    """Engine steps between looks at the answers of environments, and at complete responses."""
    turns: ConversationTurns | None = None
    """Answers the turns of conversations. None: one response to each prompt."""

    def prompts_from(self, start: int, count: int) -> list[Prompt]:
        """Return `count` prompts from an index in the order; indices count from 0."""
        return [self.prompts[index] for index in self.order.indices(start, count)]

    def roll_out(
        self,
        prompts: Sequence[Prompt],
        step: int,
        answered: Sequence[Prompt] = (),
        on_completed: OnCompleted | None = None,
    ) -> Rollouts:
        """Generate responses with the current weights; `answered` are earlier prompts.

        `on_completed` receives responses, by their rows, while others are generated.
        """
        watched = None if on_completed is None else Watched(self.round_steps, on_completed)
        with self.rewards.timer("rollout"):
            self.workers.engines.publish(step - 1)
            return self.workers.generate_sequences(
                prompts, self.sampling, step=step, answered=answered, watched=watched
            )
