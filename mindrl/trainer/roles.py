"""What a trainer needs of the models, whatever runs them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mindrl.batch.experience import CriticMinibatch, Minibatch
from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Rollouts
from mindrl.batch.sequences import Logprobs, Sequences, SequenceScores, Values
from mindrl.config.layout_keys import Role
from mindrl.observability.memory_snapshot import MeasuredSnapshot
from mindrl.rollout.engine import Sampling


class Workers(Protocol):
    """All models of a run; one that it does without is not asked.

    They share their devices: each call first gives the devices to its own model.
    """

    def generate_sequences(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, step: int
    ) -> Rollouts:
        """Sample responses of the policy."""

    def compute_logprobs(self, sequences: Sequences) -> Logprobs:
        """Score sequences with the policy's current weights."""

    def compute_ref_logprobs(self, sequences: Sequences) -> Logprobs:
        """Score sequences with the reference, which never changes."""

    def compute_values(self, sequences: Sequences) -> Values:
        """Value each response token with the critic's current weights."""

    def compute_rewards(self, sequences: Sequences) -> SequenceScores:
        """Judge whole sequences with the reward model, which never changes."""

    def update(self, minibatch: Minibatch) -> dict[str, float]:
        """Take one optimizer step of the policy."""

    def update_critic(self, minibatch: CriticMinibatch) -> dict[str, float]:
        """Take one optimizer step of the critic."""

    def export(self, role: Role, folder: Path, record: Mapping[str, object]) -> None:
        """Write a trained model as a Hugging Face folder, with a record of it."""

    def keep_export(self, folder: Path, kept: Path) -> None:
        """Keep an exported folder under a second name, whatever replaces the first."""

    def flush_metrics(self) -> dict[str, float]:
        """Return what the changes of phase cost, and the memory of each worker."""

    def record_memory(self, is_on: bool) -> None:
        """Note from now on what lies on each device at each moment, or no longer."""

    def flush_moments(self) -> list[list[MeasuredSnapshot]]:
        """Return what each worker noted since the last call."""
