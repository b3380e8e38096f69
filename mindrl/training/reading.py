"""What a model says of tokens, read from its last hidden states and put back to its sequences.

Shapes: B sequences of this data-parallel rank, T positions, S tokens of a pack, H hidden size, K
numbers of the head for each token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from mindrl.algorithms.losses import LossTerms
from mindrl.models.decoder import Head
from mindrl.training.engine import Batch, Loss
from mindrl.training.logprobs import Vocabulary, chunked_logprobs
from mindrl.training.packs import Pack
from mindrl.training.rows import put_back


@dataclass(frozen=True, kw_only=True)
class HeadReader:
    """Reads the head of a model; one of each rank that has it."""

    head: Head
    vocabulary: Vocabulary
    """Of a head of that kind: the part of this rank is that of its tensor-parallel place."""
    context: dist.ProcessGroup | None
    """The ranks that share the tokens of each sequence; None for one alone."""
    replicas: dist.ProcessGroup
    """The ranks that read other sequences, or other tokens of them."""

    def read(self, pack: Pack[Batch], hidden_1SH: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """Return K tensors [B, T]: 0 for other ranks' tokens.

        A token's value is read where its log-prob is: at the token before it.
        """
        hidden_NH = hidden_1SH[0, pack.predicting_N]
        if self.head == "value":
            return (pack.spread(functional.linear(hidden_NH.float(), weight.float())[:, 0]),)
        found = chunked_logprobs(hidden_NH, weight, pack.targets_N, self.vocabulary)
        return tuple(pack.spread(each_N) for each_N in found)

    def joined(
        self, read: Sequence[Tensor], rows_of: Sequence[Sequence[int]], width: int
    ) -> tuple[Tensor, ...]:
        """Put what was read of each pack, [K, B, T], to its rows, on the host; of idle ones none.

        A collective over the ranks that share the tokens of each sequence.
        """
        read = read[: len(rows_of)]
        if self.context is not None:
            for read_KBT in read:
                # Each token was read on one of these ranks and is 0 on the others.
                dist.all_reduce(read_KBT, group=self.context)
        return put_back([read_KBT.cpu() for read_KBT in read], rows_of, width)

    def over_tokens(self, values_B: Tensor) -> Tensor:
        """Add over the ranks that share the tokens of each sequence. A collective over them."""
        if self.context is not None:
            values_B = values_B.clone()
            dist.all_reduce(values_B, group=self.context)
        return values_B

    def total(self, terms: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
        """Add the weighted sums over micro-batches and replicas. A collective over them."""
        names = sorted(terms[0])
        sums = torch.stack([torch.stack([term[name] for term in terms]).sum() for name in names])
        dist.all_reduce(sums, group=self.replicas)
        return dict(zip(names, sums.tolist(), strict=True))


@dataclass
class UpdatePass:
    """The losses of the packs of one update, and what the head said on the way."""

    reading: HeadReader
    loss: Loss[Any]
    keeps: bool
    """What the head said is kept."""
    losses: list[Tensor] = field(default_factory=list)
    """Of each pack the loss and what is told of it; none before the last stage."""
    kept: list[Tensor] = field(default_factory=list)
    """Of each pack [K, B, T]."""

    def terms(self, pack: Pack[Any], hidden_1SH: Tensor, weight: Tensor) -> LossTerms:
        """Return the loss of a pack."""
        own_BT = pack.spread(torch.ones(len(pack.places_N), device=pack.places_N.device))
        read = self.reading.read(pack, hidden_1SH, weight)
        if self.keeps:
            self.kept.append(torch.stack(read).detach())
        terms = self.loss(read, pack.source, own_BT, self.reading.over_tokens)
        self.losses.append(torch.stack([terms.loss.detach(), *terms.metrics.values()]))
        return terms
