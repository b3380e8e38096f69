"""Conversations with several sequences, seen as one response each.

A conversation has several sequences if its prompt was rendered anew in between. Rewards,
advantages and token weights count conversations, not sequences.

Shapes: B sequences, T positions, C conversations, L tokens of the policy in the longest of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Conversations:
    """The sequences of a batch by conversation. Without `conversation_B` each sequence is one."""

    mask_BT: Tensor
    """bool; tokens that the policy sampled."""
    conversation_B: Tensor | None
    """int64; equal for the sequences of a conversation, which are adjacent and in order."""

    def mask(self) -> Tensor:
        """Return the mask of each conversation's tokens, bool [C, L]; [B, T] if each is one row."""
        if self.conversation_B is None:
            return self.mask_BT
        lengths_C = (
            self._index()
            .new_zeros(self._count())
            .index_add(0, self._index(), self.mask_BT.sum(dim=1))
        )
        return torch.arange(int(lengths_C.max())) < lengths_C[:, None]

    def joined(self, values_BT: Tensor) -> Tensor:
        """Return values of the policy's tokens by conversation, [C, L]; 0 elsewhere."""
        if self.conversation_B is None:
            return values_BT
        mask_CL = self.mask()
        zeros_CL = values_BT.new_zeros(mask_CL.shape)
        # Row by row, the policy's tokens have the same order in both layouts.
        return zeros_CL.masked_scatter_(mask_CL, values_BT[self.mask_BT])

    def spread(self, values_CL: Tensor) -> Tensor:
        """Return values of conversations by sequence, [B, T]: the inverse of `joined`."""
        if self.conversation_B is None:
            return values_CL
        zeros_BT = values_CL.new_zeros(self.mask_BT.shape)
        return zeros_BT.masked_scatter_(self.mask_BT, values_CL[self.mask()])

    def last(self, values_B: Tensor) -> Tensor:
        """Return the value of the last sequence of each conversation, [C]."""
        return values_B if self.conversation_B is None else values_B[self.rows()]

    def rows(self) -> Tensor:
        """Return the index of the last sequence of each conversation, int64 [C]."""
        if self.conversation_B is None:
            return torch.arange(len(self.mask_BT))
        return last_rows(self.conversation_B)

    def index(self) -> Tensor:
        """Return the index of the conversation of each sequence, int64 [B]."""
        return torch.arange(len(self.mask_BT)) if self.conversation_B is None else self._index()

    def _index(self) -> Tensor:
        assert self.conversation_B is not None, "asked of several"
        index_B: Tensor = torch.unique_consecutive(self.conversation_B, return_inverse=True)[1]
        return index_B

    def _count(self) -> int:
        return int(self._index()[-1]) + 1


def last_rows(conversation_B: Tensor) -> Tensor:
    """Return the index of the last sequence of each conversation, int64 [C]."""
    index_B: Tensor = torch.unique_consecutive(conversation_B, return_inverse=True)[1]
    return index_B.bincount().cumsum(dim=0).sub(1)
