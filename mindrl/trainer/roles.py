"""What a trainer needs of the models, whatever runs them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from mindrl.batch.experience import Minibatch, Scored, Sequences
from mindrl.batch.prompts import Prompt, Sampling
from mindrl.batch.rollouts import Rollouts
from mindrl.rewards.scorer import Scores


class Policy(Protocol):
    """The model that is trained; it shares its devices between the phases."""

    def rollout_phase(self) -> AbstractContextManager[None]:
        """Give the devices to the rollout engine for a while."""

    def train_phase(self) -> AbstractContextManager[None]:
        """Bring gradients and optimizer state to the devices for a while."""

    def generate_sequences(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, step: int
    ) -> Rollouts:
        """Sample responses; within the rollout phase only."""

    def compute_log_prob(self, sequences: Sequences) -> Scored:
        """Score sequences with the current weights; outside the rollout phase."""

    def update(self, minibatch: Minibatch) -> dict[str, float]:
        """Take one optimizer step; within the train phase only."""


class Reference(Protocol):
    """A model that never changes."""

    def compute_ref_log_prob(self, sequences: Sequences) -> Scored:
        """Score sequences; outside the rollout phase."""


class Workers(Protocol):
    """What holds the models."""

    def export(self, folder: Path) -> None:
        """Write the policy's weights as a Hugging Face folder."""

    def flush_metrics(self) -> dict[str, float]:
        """Return what the changes of phase cost, and the memory of each worker."""


class Scorer(Protocol):
    """Rates responses."""

    def score(self, responses: Sequence[str], references: Sequence[str]) -> Scores:
        """Rate each response against its reference answer."""
