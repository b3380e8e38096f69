"""Read the head's outputs from the last hidden states and put them back in sequences.

Shapes: B sequences of this data-parallel rank, T positions, S tokens of a pack, H hidden size, K
outputs of the head for each token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from mindrl.algorithms.losses import Loss, LossInputs
from mindrl.config.teacher import Candidates
from mindrl.models.decoder import Head
from mindrl.training.engine import Batch
from mindrl.training.logprobs import Vocabulary, chunked_logprobs, most_probable
from mindrl.training.packs import Pack
from mindrl.training.rows import put_back

Reader = Callable[[Pack[Any], Tensor, Tensor], Tensor]
"""Maps a pack, its last hidden states [1, S, H] and the head's weight to a tensor; a loss is
0-dim."""


@dataclass(frozen=True, kw_only=True)
class HeadReader:
    """Reads a model's head, on each rank that has it."""

    head: Head
    vocabulary: Vocabulary
    """Part of the vocabulary of this rank's tensor-parallel place; unused by a value head."""
    context: dist.ProcessGroup | None
    """Ranks that share the tokens of each sequence; None for a single rank."""
    replicas: dist.ProcessGroup
    """Ranks that read other sequences, or other tokens of the same sequences."""
    candidates: Candidates | None = None
    """Most probable tokens that are also read at each position, without gradient."""

    def read(self, pack: Pack[Batch], hidden_1SH: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """Return K tensors [B, T], 0 for tokens of other ranks.

        A token's value and its log-prob are both read at the token before it. Log-probs and
        entropies precede the log-probs of each candidate of the pack, or the ids of the most
        probable tokens and their log-probs; float32 holds every id below 2^24.
        """
        # Indexing would add gradients in no fixed order if a token is read several times.
        hidden_NH = hidden_1SH[0].index_select(0, pack.predicting_N)
        if self.head == "value":
            return (pack.spread(functional.linear(hidden_NH.float(), weight.float())[:, 0]),)
        return tuple(pack.spread(each_N) for each_N in self._of_vocabulary(pack, hidden_NH, weight))

    def _of_vocabulary(self, pack: Pack[Batch], hidden_NH: Tensor, weight: Tensor) -> list[Tensor]:
        targets_N, vocabulary = pack.targets_N, self.vocabulary
        if self.candidates is not None:
            logprobs_N, entropy_N, ids_NK, logprobs_NK = most_probable(
                hidden_NH, weight, targets_N, vocabulary, self.candidates
            )
            return [logprobs_N, entropy_N, *ids_NK.T.to(logprobs_NK.dtype), *logprobs_NK.T]
        if pack.candidates_NK is None:
            return [*chunked_logprobs(hidden_NH, weight, targets_N, vocabulary)]
        targets_NK = torch.cat([targets_N[:, None], pack.candidates_NK], dim=1)
        logprobs_NK, entropy_N = chunked_logprobs(hidden_NH, weight, targets_NK, vocabulary)
        return [logprobs_NK[:, 0], entropy_N, *logprobs_NK[:, 1:].T]

    def joined(
        self, read: Sequence[Tensor], rows_of: Sequence[Sequence[int]], width: int
    ) -> tuple[Tensor, ...]:
        """Put the outputs of each pack, [K, B, T], in their rows, on the host; drop idle packs.

        A collective over the ranks that share the tokens of each sequence.
        """
        read = read[: len(rows_of)]
        if self.context is not None:
            for read_KBT in read:
                # Each token was read on one of these ranks; the others have 0.
                dist.all_reduce(read_KBT, group=self.context)
        return put_back([read_KBT.cpu() for read_KBT in read], rows_of, width)

    def over_tokens(self, values_B: Tensor) -> Tensor:
        """Sum over the ranks that share the tokens of each sequence. A collective over them."""
        if self.context is not None:
            values_B = values_B.clone()
            dist.all_reduce(values_B, group=self.context)
        return values_B

    def total(self, terms: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
        """Sum the metrics over micro-batches and replicas. A collective over the replicas."""
        names = sorted(terms[0])
        sums = torch.stack([torch.stack([term[name] for term in terms]).sum() for name in names])
        dist.all_reduce(sums, group=self.replicas)
        return dict(zip(names, sums.tolist(), strict=True))


@dataclass
class UpdatePass:
    """Losses and, if kept, head outputs of the packs of one update."""

    reading: HeadReader
    loss: Loss[Any]
    keeps: bool
    """Whether the head's outputs are kept."""
    losses: list[Tensor] = field(default_factory=list)
    """Loss and metrics of each pack; empty before the last stage."""
    metrics: list[Mapping[str, Tensor]] = field(default_factory=list)
    """Metrics of each pack."""
    kept: list[Tensor] = field(default_factory=list)
    """Head outputs of each pack, [K, B, T]."""

    def loss_of(self, pack: Pack[Any], hidden_1SH: Tensor, weight: Tensor) -> Tensor:
        """Return the loss of a pack, and record its terms."""
        own_BT = pack.spread(torch.ones(len(pack.places_N), device=pack.places_N.device))
        read = self.reading.read(pack, hidden_1SH, weight)
        if self.keeps:
            self.kept.append(torch.stack(read).detach())
        terms = self.loss(LossInputs.of(read, pack.source, own_BT, self.reading.over_tokens))
        self.losses.append(torch.stack([terms.loss.detach(), *terms.metrics.values()]))
        self.metrics.append(terms.metrics)
        return terms.loss
