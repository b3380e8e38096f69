"""Rollouts with everything that an update needs, and how they are cut into updates.

Shapes: B sequences, T positions. Log-probs at position t are those of the token at t.
"""

from collections.abc import Callable, Iterator
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

    def split(self, size: int) -> Iterator[Self]:
        """Cut into runs of at most `size` sequences."""
        for start in range(0, len(self), size):
            yield self.rows(slice(start, start + size))

    def shard(self, index: int, count: int) -> Self:
        """Take the `index`-th of `count` equal parts."""
        per_part = len(self) // count
        assert per_part * count == len(self), "validated: a batch divides over its replicas"
        return self.rows(slice(index * per_part, (index + 1) * per_part))


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """What a model says of a batch of sequences, on the host, 0 outside the response."""

    logprobs_BT: Tensor
    """float32, nats."""
    entropy_BT: Tensor
    """float32, nats, of the distribution that the token was drawn from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Minibatch(Sequences):
    """The sequences of one optimizer step, over all data-parallel ranks."""

    old_logprobs_BT: Tensor
    """float32; of the policy that the update starts from, computed by the trainer."""
    advantages_BT: Tensor
    """float32; how much better than its group a token's response was."""
    token_weights_BT: Tensor
    """float32; 0 outside the response; sums to 1 over the whole update."""
    ref_logprobs_BT: Tensor | None
    """float32; of the reference. None where the run has no KL term."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MinibatchPlan:
    """How an experience becomes optimizer steps."""

    prompts_per_update: int
    epochs: int
    token_weights: Callable[[Tensor], Tensor]
    """From a response mask to weights that sum to 1."""
    generator: torch.Generator | None
    """Deals the prompts anew in each epoch; None keeps their order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experience(Sequences):
    """The sequences of one step with their log-probs and advantages."""

    group_B: Tensor
    """int64; which prompt of the step a sequence answers."""
    old_logprobs_BT: Tensor
    advantages_BT: Tensor
    ref_logprobs_BT: Tensor | None

    def minibatches(self, plan: MinibatchPlan) -> Iterator[Minibatch]:
        """Cut into optimizer steps; the sequences of one prompt stay together."""
        groups_P = torch.unique(self.group_B)
        for _ in range(plan.epochs):
            if plan.generator is not None:
                groups_P = groups_P[torch.randperm(len(groups_P), generator=plan.generator)]
            for chosen in groups_P.split(plan.prompts_per_update):
                rows = torch.cat([torch.nonzero(self.group_B == group)[:, 0] for group in chosen])
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
