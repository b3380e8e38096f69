"""Read the head's outputs from the last hidden states and put them back in sequences.

Shapes: B sequences of this data-parallel rank, T positions, S tokens of a pack, N of them predict a
token; H hidden size; R response tokens of the sequences, K of a teacher's tokens at each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from mindrl.algorithms.losses import LikelyLogprobs, Loss, LossInputs
from mindrl.batch.likely_tokens import LikelyTokens
from mindrl.config.teacher import Candidates
from mindrl.models.decoder import Head
from mindrl.training.engine import Batch
from mindrl.training.logprobs import Vocabulary, chunked_logprobs, most_probable
from mindrl.training.packs import Pack
from mindrl.training.rows import put_back

Reader = Callable[[Pack[Any], Tensor, Tensor], Tensor]
"""Maps a pack, its last hidden states [1, S, H] and the head's weight to a tensor; a loss is
0-dim."""


class HeadOutputs(NamedTuple):
    """Outputs of a head for a pack."""

    each: tuple[Tensor, ...]
    """[B, T], 0 for tokens of other ranks: values, or log-probs and entropies of a vocabulary."""
    likely: tuple[Tensor, ...] = ()
    """[N, K]: of the pack's likely tokens the log-probs of this model, with gradient, and of the
    teacher; or ids and log-probs of the most probable tokens. Padded, they would take as many times
    the memory as the longest sequence is longer than the mean."""


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

    def read(self, pack: Pack[Batch], hidden_1SH: Tensor, weight: Tensor) -> HeadOutputs:
        """Return the outputs for a pack.

        A token's value and its log-prob are both read at the token before it.
        """
        # Indexing would add gradients in no fixed order if a token is read several times.
        hidden_NH = hidden_1SH[0].index_select(0, pack.predicting_N)
        if self.head == "value":
            values_N = functional.linear(hidden_NH.float(), weight.float())[:, 0]
            return HeadOutputs((pack.spread(values_N),))
        logprobs_N, entropy_N, *likely = self._of_vocabulary(pack, hidden_NH, weight)
        return HeadOutputs((pack.spread(logprobs_N), pack.spread(entropy_N)), tuple(likely))

    def _of_vocabulary(
        self, pack: Pack[Batch], hidden_NH: Tensor, weight: Tensor
    ) -> tuple[Tensor, ...]:
        targets_N, vocabulary, likely = pack.targets_N, self.vocabulary, pack.source.likely
        if self.candidates is not None:
            return most_probable(hidden_NH, weight, targets_N, vocabulary, self.candidates)
        if likely is None:
            return chunked_logprobs(hidden_NH, weight, targets_N, vocabulary)
        ids_NK, theirs_NK = likely.at(pack.numbers_N, targets_N.device)
        targets_NK = torch.cat([targets_N[:, None], ids_NK], dim=1)
        logprobs_NK, entropy_N = chunked_logprobs(hidden_NH, weight, targets_NK, vocabulary)
        return logprobs_NK[:, 0], entropy_N, logprobs_NK[:, 1:].contiguous(), theirs_NK

    def likely_tokens(self, pack: Pack[Batch], found: Sequence[Tensor]) -> LikelyTokens:
        """Copy the most probable tokens that `read` found to the host.

        A collective over the ranks that share the tokens of each sequence.
        """
        ids_KR, logprobs_KR = (self._of_all_ranks(pack, each_NK) for each_NK in found)
        counts_B = pack.source.response_mask_BT.sum(dim=1)
        return LikelyTokens(ids_KR=ids_KR, logprobs_KR=logprobs_KR, counts_B=counts_B)

    def _of_all_ranks(self, pack: Pack[Batch], found_NK: Tensor) -> Tensor:
        """Return what all ranks found at the response tokens of a pack, [K, R], on the host."""
        count = int(pack.source.response_mask_BT.sum())
        whole_RK = found_NK.new_zeros(count, found_NK.size(1))
        whole_RK.index_copy_(0, pack.numbers_N.to(found_NK.device), found_NK)
        if self.context is not None:
            dist.all_reduce(whole_RK, group=self.context)
        return whole_RK.cpu().T.contiguous()

    def joined(
        self, read: Sequence[Tensor], rows_of: Sequence[Sequence[int]], width: int
    ) -> Tensor:
        """Put the outputs of each pack, [B, T], in their rows, on the host; drop idle packs.

        A collective over the ranks that share the tokens of each sequence.
        """
        read = read[: len(rows_of)]
        if self.context is not None:
            for read_BT in read:
                # Each token was read on one of these ranks; the others have 0.
                dist.all_reduce(read_BT, group=self.context)
        return put_back([read_BT.cpu() for read_BT in read], rows_of, width)

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
class ForwardPass:
    """Most probable tokens of the packs of a forward pass, if the reader finds any."""

    reading: HeadReader
    likely: list[LikelyTokens] = field(default_factory=list)

    def outputs_of(self, pack: Pack[Any], hidden_1SH: Tensor, weight: Tensor) -> Tensor:
        """Return log-probs or values of a pack, [B, T], and keep its most probable tokens."""
        read = self.reading.read(pack, hidden_1SH, weight)
        if self.reading.candidates is not None and not pack.is_idle:
            self.likely.append(self.reading.likely_tokens(pack, read.likely))
        return read.each[0]

    def joined(self, rows_of: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
        """Return ids and log-probs of the tokens of all packs, in the order of the batch."""
        if not self.likely:
            return ()
        order = torch.tensor([*chain.from_iterable(rows_of)]).argsort()
        whole = LikelyTokens.joined(self.likely).rows(order)
        return whole.ids_KR, whole.logprobs_KR


@dataclass
class UpdatePass:
    """Losses and, if kept, log-probs or values of the packs of one update."""

    reading: HeadReader
    loss: Loss[Any]
    keeps: bool
    """Whether log-probs or values are kept."""
    losses: list[Tensor] = field(default_factory=list)
    """Loss and metrics of each pack; empty before the last stage."""
    metrics: list[Mapping[str, Tensor]] = field(default_factory=list)
    """Metrics of each pack."""
    kept: list[Tensor] = field(default_factory=list)
    """Log-probs or values of each pack, [B, T]."""

    def loss_of(self, pack: Pack[Any], hidden_1SH: Tensor, weight: Tensor) -> Tensor:
        """Return the loss of a pack, and record its terms."""
        own_BT = pack.spread(torch.ones(len(pack.places_N), device=pack.places_N.device))
        read = self.reading.read(pack, hidden_1SH, weight)
        if self.keeps:
            self.kept.append(read.each[0].detach())
        likely = None
        if read.likely:
            ours_NK, theirs_NK = read.likely
            likely = LikelyLogprobs(ours_NK=ours_NK, theirs_NK=theirs_NK, places_N=pack.places_N)
        total = self.reading.over_tokens
        terms = self.loss(LossInputs.of(read.each, pack.source, own_BT, total, likely))
        self.losses.append(torch.stack([terms.loss.detach(), *terms.metrics.values()]))
        self.metrics.append(terms.metrics)
        return terms.loss
