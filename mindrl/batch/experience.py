"""Rollouts with everything that an update needs, and how they are cut into updates.

Shapes: B sequences, T positions. Log-probs at position t are those of the token at t, and so is
the value: what is expected before the token at t is chosen.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """Token sequences whose log-probs are asked for."""

    tokens_BT: Tensor
    """int64, padded on the right."""
    lengths_B: Tensor
    """int64, tokens of each sequence."""
    response_mask_BT: Tensor
    """bool; True where a log-prob is wanted. Never True at position 0."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.lengths_B)

    def rows(self, index: Tensor | slice) -> Self:
        """Take some sequences, in the order of `index`, cut to the longest of them."""
        longest = int(self.lengths_B[index].max())
        columns: dict[str, Any] = {}
        for field in fields(self):
            column: Tensor | None = getattr(self, field.name)
            if column is not None:
                column = column[index]
                column = column[:, :longest].contiguous() if column.dim() > 1 else column
            columns[field.name] = column
        return replace(self, **columns)

    def shard(self, index: int, count: int) -> Self:
        """Take the `index`-th of `count` equal parts."""
        per_part = len(self) // count
        assert per_part * count == len(self), "validated: a batch divides over its replicas"
        return self.rows(slice(index * per_part, (index + 1) * per_part))


@dataclass(frozen=True, kw_only=True, slots=True)
class Logprobs:
    """Log-probs of a batch of sequences, on the host, 0 outside the response."""

    logprobs_BT: Tensor
    """float32, nats."""
    entropy_BT: Tensor
    """float32, nats, of the distribution that the token was drawn from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Values:
    """What a critic says of a batch of sequences, on the host."""

    values_BT: Tensor
    """float32, in units of reward; 0 outside the response."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceScores:
    """What a reward model says of a batch of sequences, on the host."""

    rewards_B: Tensor
    """float32, one for each whole sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Minibatch(Sequences):
    """The sequences of one optimizer step of the actor, over all data-parallel ranks."""

    old_logprobs_BT: Tensor
    """float32; of the policy that the update starts from, computed by the trainer."""
    advantages_BT: Tensor
    """float32; how much better than expected the choice of a token was."""
    token_weights_BT: Tensor
    """float32; 0 outside the response; sums to 1 over the whole update."""
    ref_logprobs_BT: Tensor | None
    """float32; of the reference. None where the run has no KL term."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticMinibatch(Sequences):
    """The sequences of one optimizer step of the critic, over all data-parallel ranks."""

    old_values_BT: Tensor
    """float32; of the critic that the updates start from."""
    returns_BT: Tensor
    """float32; what the critic should have said."""
    token_weights_BT: Tensor
    """float32; 0 outside the response; sums to 1 over the whole update."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MinibatchPlan:
    """How an experience becomes optimizer steps."""

    prompts_per_update: int
    epochs: int
    token_weights: Callable[[Tensor], Tensor]
    """From a response mask to weights that sum to 1."""
    generator: torch.Generator | None
    """Deals the prompts anew in each epoch; None keeps their order."""

    def deal(self, group_B: Tensor) -> list[Tensor]:
        """Return the rows of each optimizer step; the sequences of one prompt stay together.

        Args:
            group_B: Which prompt of the step each sequence answers.
        """
        groups_P = torch.unique(group_B)
        dealt = []
        for _ in range(self.epochs):
            if self.generator is not None:
                groups_P = groups_P[torch.randperm(len(groups_P), generator=self.generator)]
            dealt += [
                torch.cat([torch.nonzero(group_B == group)[:, 0] for group in chosen])
                for chosen in groups_P.split(self.prompts_per_update)
            ]
        return dealt


@dataclass(frozen=True, kw_only=True, slots=True)
class Experience(Sequences):
    """The sequences of one step with their log-probs and advantages."""

    group_B: Tensor
    """int64; which prompt of the step a sequence answers."""
    old_logprobs_BT: Tensor
    advantages_BT: Tensor
    ref_logprobs_BT: Tensor | None

    def minibatches(
        self, plan: MinibatchPlan, dealt: Iterable[Tensor] | None = None
    ) -> Iterator[Minibatch]:
        """Cut into optimizer steps of the actor.

        Args:
            plan: How.
            dealt: Rows of each step, from `plan.deal`; None deals now.
        """
        for rows in plan.deal(self.group_B) if dealt is None else dealt:
            part = self.rows(rows)
            yield Minibatch(
                tokens_BT=part.tokens_BT,
                lengths_B=part.lengths_B,
                response_mask_BT=part.response_mask_BT,
                old_logprobs_BT=part.old_logprobs_BT,
                advantages_BT=part.advantages_BT,
                token_weights_BT=plan.token_weights(part.response_mask_BT),
                ref_logprobs_BT=part.ref_logprobs_BT,
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ValuedExperience(Experience):
    """The sequences of one step with what their critic said of them, and should have said."""

    old_values_BT: Tensor
    returns_BT: Tensor

    def critic_minibatches(
        self, plan: MinibatchPlan, dealt: Iterable[Tensor]
    ) -> Iterator[CriticMinibatch]:
        """Cut into optimizer steps of the critic, by the rows that `plan.deal` gave."""
        for rows in dealt:
            part = self.rows(rows)
            yield CriticMinibatch(
                tokens_BT=part.tokens_BT,
                lengths_B=part.lengths_B,
                response_mask_BT=part.response_mask_BT,
                old_values_BT=part.old_values_BT,
                returns_BT=part.returns_BT,
                token_weights_BT=plan.token_weights(part.response_mask_BT),
            )
