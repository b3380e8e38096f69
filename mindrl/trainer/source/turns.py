"""Common parts of environments and of agents over HTTP, which answer the turns of a policy."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mindrl.batch.conversations import Dialogue
from mindrl.batch.prompts import Prompt
from mindrl.config.environment import EnvironmentConfig
from mindrl.data.turn_template import TurnTemplate
from mindrl.observability.metrics import Metrics
from mindrl.trainer.source.conversation_metrics import check_failures, conversation_metrics
from mindrl.trainer.source.group import OpenGroup, OpenSequence

ResponseKey = tuple[int, int]
"""Number of a group, and index of a response in it."""


@dataclass(kw_only=True)
class ConversationTurns(ABC):
    """Answers the turns of a pool's conversations."""

    owner: str
    """Name of the pool with the conversations."""
    config: EnvironmentConfig
    template: TurnTemplate
    decode: Callable[[list[int]], str]
    longest: int
    """Most tokens of a conversation after its prompt."""
    longest_prompt: int
    warn: Callable[[str], None]
    waiting: set[ResponseKey] = field(default_factory=set, init=False)
    """Conversations that wait for an answer."""
    failures: Counter[str] = field(default_factory=Counter, init=False)
    """Failed conversations since the last look, by reason."""
    idle_seconds: float = field(default=0.0, init=False)
    """Time since the last look in which engines waited because no turn could begin."""

    @abstractmethod
    def forget(self) -> None:
        """End all conversations."""

    @abstractmethod
    def begin(self, row: ResponseKey, sequence: OpenSequence, prompt: Prompt, seed: int) -> None:
        """Let a conversation begin, or continue one that is not known here."""

    @abstractmethod
    def drawn(self, row: ResponseKey, sequence: OpenSequence, prompt: Prompt) -> OpenSequence:
        """Pass on a turn of the policy if it has ended; end the conversation at a limit."""

    @abstractmethod
    def is_answering(self) -> bool:
        """Return whether an answer will come without another turn."""

    @abstractmethod
    def answers(self, seconds: float) -> Sequence[tuple[ResponseKey, Any]]:
        """Return the answers that arrive within `seconds`, at least one if there is any."""

    @abstractmethod
    def answered(
        self, row: ResponseKey, sequence: OpenSequence, prompt: Prompt, answer: Any
    ) -> OpenSequence:
        """Add an answer; unless it ends the conversation, the policy has the next turn."""

    @abstractmethod
    def lost_processes(self) -> int:
        """Return the number of processes that were lost since the last look."""

    def check(self, groups: Sequence[OpenGroup]) -> Metrics:
        """Return metrics about finished groups, and warn of failed conversations.

        Raises:
            EnvironmentFailedError: Too many have failed.
        """
        for line in check_failures(groups, self.taken_failures(), self.config.max_failed_fraction):
            self.warn(line)
        return self.metrics(groups)

    def taken_failures(self) -> dict[str, int]:
        """Return the number of failed conversations since the last look, by reason."""
        reasons, self.failures = self.failures, Counter()
        return dict(reasons)

    def metrics(self, groups: Sequence[OpenGroup]) -> Metrics:
        """Return metrics about finished groups, and about processes since the last look."""
        idle, self.idle_seconds = self.idle_seconds, 0.0
        return {
            **conversation_metrics(groups),
            "turns/lost_processes": float(self.lost_processes()),
            "turns/idle_seconds": idle,
        }

    def tokens_left(self, row: ResponseKey, sequence: OpenSequence) -> int:  # noqa: ARG002
        """Return the most tokens that the current turn of a response may still have."""
        conversation, length = dialogue_of(sequence), len(sequence.tokens_N)
        of_turn = self.config.max_turn_tokens or self.longest
        segment = conversation.segments(length)[-1]
        of_model = self.longest_prompt + self.longest - len(segment.prompt_ids)
        return min(
            self.longest - length,
            of_turn - (length - conversation.next_start),
            of_model - (length - segment.start),
        )

    def place(self, sequence: OpenSequence) -> int:
        """Return the place of the next token, for the seed of its request."""
        return len(sequence.tokens_N)

    def _failed(self, sequence: OpenSequence, reason: str) -> OpenSequence:
        """End a conversation that cannot be trained on."""
        self.failures[reason] += 1
        conversation = replace(dialogue_of(sequence), ending="failed")
        return replace(sequence, conversation=conversation)


def dialogue_of(sequence: OpenSequence) -> Dialogue:
    """Return the turns of a response."""
    assert sequence.conversation is not None, "it has an environment"
    return sequence.conversation


def with_given(sequence: OpenSequence, given: Sequence[int], *, finished: bool) -> OpenSequence:
    """Append tokens that the policy did not sample, with the step of the last token before."""
    step = int(sequence.steps_N[-1])
    tokens_N = torch.tensor([*given], dtype=torch.int64)
    return sequence.with_more(tokens_N, torch.zeros(len(given)), step=step, finished=finished)
