"""What a trainer needs of the models, whatever runs them.

The models share their devices: each call first gives the devices to its own model.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mindrl.batch.experience import CriticMinibatch, Minibatch
from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Rollouts
from mindrl.batch.sequences import Logprobs, Sequences, SequenceScores, Values
from mindrl.observability.memory_snapshot import MeasuredSnapshot
from mindrl.rewards.scores import Scores
from mindrl.rollout.sampling import Sampling


class Policy(Protocol):
    """The model that is trained."""

    def generate_sequences(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, step: int
    ) -> Rollouts:
        """Sample responses."""

    def compute_logprobs(self, sequences: Sequences) -> Logprobs:
        """Score sequences with the current weights."""

    def update(self, minibatch: Minibatch) -> dict[str, float]:
        """Take one optimizer step."""


class ReferenceModel(Protocol):
    """A model that never changes."""

    def compute_ref_logprobs(self, sequences: Sequences) -> Logprobs:
        """Score sequences."""


class Critic(Protocol):
    """The model that says what reward is still to be expected."""

    def compute_values(self, sequences: Sequences) -> Values:
        """Value each response token with the current weights."""

    def update_critic(self, minibatch: CriticMinibatch) -> dict[str, float]:
        """Take one optimizer step."""

    def export_critic(self, folder: Path, record: Mapping[str, object]) -> None:
        """Write the critic's weights as a Hugging Face folder, with a record of them."""


class RewardModel(Protocol):
    """A model that judges whole sequences and never changes."""

    def compute_rewards(self, sequences: Sequences) -> SequenceScores:
        """Score sequences."""


class Workers(Protocol):
    """What holds the models."""

    def export(self, folder: Path, record: Mapping[str, object]) -> None:
        """Write the policy's weights as a Hugging Face folder, with a record of them."""

    def keep_export(self, folder: Path, kept: Path) -> None:
        """Keep an exported folder under a second name, whatever replaces the first."""

    def flush_metrics(self) -> dict[str, float]:
        """Return what the changes of phase cost, and the memory of each worker."""

    def record_memory(self, is_on: bool) -> None:
        """Note from now on what lies on each device at each moment, or no longer."""

    def flush_moments(self) -> list[list[MeasuredSnapshot]]:
        """Return what each worker noted since the last call."""


class Scorer(Protocol):
    """Rates responses."""

    def score(self, responses: Sequence[str], answers: Sequence[str]) -> Scores:
        """Rate each response against the right answer."""

    def abort(self) -> None:
        """End a rating that another thread waits for; nothing is rated behind it."""
