"""A teacher's most probable tokens at the response positions of sequences, without padding.

Shapes: B sequences, R response positions of all of them in order, K tokens at each, N chosen
positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from mindrl.batch.packing import Compact


@dataclass(frozen=True, kw_only=True, slots=True)
class LikelyTokens(Compact):
    """The most probable tokens at each position of a batch's response mask, on the host."""

    ids_KR: Tensor
    """int64."""
    logprobs_KR: Tensor
    """float32, nats."""
    counts_B: Tensor
    """int64; number of response positions of each sequence."""

    def rows(self, index: Tensor | slice) -> Self:
        """Select sequences in the order of `index`."""
        places = torch.split(torch.arange(self.ids_KR.size(1)), self.counts_B.tolist())
        rows = torch.arange(len(self.counts_B))[index].tolist()
        chosen_R = torch.cat([places[row] for row in rows])
        return type(self)(
            ids_KR=self.ids_KR[:, chosen_R],
            logprobs_KR=self.logprobs_KR[:, chosen_R],
            counts_B=self.counts_B[index],
        )

    def at(self, numbers_N: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Copy the tokens and their log-probs at response positions to a device, [N, K] each."""
        ids_NK, logprobs_NK = (
            each_KR[:, numbers_N].T.contiguous().to(device)
            for each_KR in (self.ids_KR, self.logprobs_KR)
        )
        return ids_NK, logprobs_NK

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the sequences of batches."""
        return cls(
            ids_KR=torch.cat([part.ids_KR for part in parts], dim=1),
            logprobs_KR=torch.cat([part.logprobs_KR for part in parts], dim=1),
            counts_B=torch.cat([part.counts_B for part in parts]),
        )
