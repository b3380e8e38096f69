"""Slots of a pack: the tokens of sequences, one run after another.

A sequence has one slot. If prompts are shared, a prompt that several sequences begin with has a
slot of its own, and each of them one for its other tokens. Shapes: T positions, S tokens of a pack.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from mindrl.batch.sequences import Sequences
from mindrl.batch.shared_prompts import same_prompts


class Slot(NamedTuple):
    """Consecutive tokens of a sequence."""

    row: int
    first: int
    stop: int
    prompt: int | None = None
    """Index of the slot with the tokens before `first`; None if there are none."""

    @property
    def length(self) -> int:
        """Tokens without padding."""
        return self.stop - self.first


def slots_of(sequences: Sequences, *, shares_prompts: bool) -> list[Slot]:
    """Return the slots of a pack, in order."""
    lengths, slots = sequences.lengths_B.tolist(), list[Slot]()
    for rows, prompt in same_prompts(sequences, shares_prompts=shares_prompts):
        before = None
        if prompt:
            before = len(slots)
            slots.append(Slot(rows[0], 0, prompt))
        slots += [Slot(row, prompt, lengths[row], before) for row in rows]
    return slots


def places(slots: Sequence[Slot], starts: Sequence[int], T: int) -> tuple[Tensor, Tensor]:
    """Return each token's index in the flattened [B, T], -1 for padding, and its position."""
    bounds = torch.tensor(starts)
    row, first, stop = torch.tensor([slot[:3] for slot in slots]).unbind(1)
    slot_S = torch.repeat_interleave(torch.arange(len(slots)), bounds.diff())
    position_S = torch.arange(starts[-1]) - bounds[slot_S] + first[slot_S]
    inside_S = position_S < stop[slot_S]
    return torch.where(inside_S, row[slot_S] * T + position_S, -1), position_S


def branches(slots: Sequence[Slot], T: int) -> tuple[Tensor, Tensor]:
    """Return the last token of a shared prompt, and the first token after it of each sequence.

    Both are indices in the flattened [B, T]. The sequence that lends the prompt is left out.
    """
    pairs = [
        (slots[slot.prompt].row * T + slot.first - 1, slot.row * T + slot.first)
        for slot in slots
        if slot.prompt is not None and slots[slot.prompt].row != slot.row
    ]
    ends, firsts = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    return ends, firsts


def seen_prompts(
    slots: Sequence[Slot], starts: Sequence[int]
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Return, by shared prompt, the tokens after it and its own tokens, as places in the pack."""
    found: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
    for slot, (start, _) in zip(slots, pairwise(starts), strict=True):
        if slot.prompt is not None:
            begin = starts[slot.prompt]
            prompt = torch.arange(begin, begin + slots[slot.prompt].length)
            after, _ = found.setdefault(slot.prompt, ([], [prompt]))
            after.append(torch.arange(start, start + slot.length))
    return [*found.values()]
