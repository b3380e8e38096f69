"""Slots of a pack: the tokens of sequences, one run after another.

A sequence has one slot. If prompts are shared, the common first tokens of several sequences have
one slot, and each sequence has another for its other tokens. Shapes: B sequences, T positions, S
tokens of a pack.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from mindrl.batch.sequence_trees import Slot


def places(slots: Sequence[Slot], starts: Sequence[int], T: int) -> tuple[Tensor, Tensor]:
    """Return each token's index in the flattened [B, T], -1 for padding, and its position."""
    bounds = torch.tensor(starts)
    row, first, stop = torch.tensor([slot[:3] for slot in slots]).unbind(1)
    slot_S = torch.repeat_interleave(torch.arange(len(slots)), bounds.diff())
    position_S = torch.arange(starts[-1]) - bounds[slot_S] + first[slot_S]
    inside_S = position_S < stop[slot_S]
    return torch.where(inside_S, row[slot_S] * T + position_S, -1), position_S


def branches(slots: Sequence[Slot], requested_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last token of a shared prompt, and each sequence's first token after the prompt.

    Both are indices in the flattened [B, T]. Leaves out sequences whose token after it is not
    requested, and the sequence that lends the prompt.
    """
    T = requested_BT.size(1)
    pairs = [
        (slots[slot.parent].row * T + slot.first - 1, slot.row * T + slot.first)
        for slot in slots
        if slot.parent is not None and slots[slot.parent].row != slot.row
    ]
    ends, firsts = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    requested = requested_BT.flatten()[firsts]
    return ends[requested], firsts[requested]


def seen_prompts(
    slots: Sequence[Slot], starts: Sequence[int]
) -> list[list[tuple[list[Tensor], list[Tensor]]]]:
    """Return which tokens see other slots, and which, as places in the pack, by depth in the tree.

    For each slot of a depth: the tokens of all slots after it, and its own tokens. A token is after
    at most one slot of a depth, so each slot's tokens are seen once.
    """
    depths, found = list[int](), dict[int, dict[int, tuple[list[Tensor], list[Tensor]]]]()
    for slot, (start, _) in zip(slots, pairwise(starts), strict=True):
        depths.append(0 if slot.parent is None else depths[slot.parent] + 1)
        own, parent = torch.arange(start, start + slot.length), slot.parent
        while parent is not None:
            seen = torch.arange(starts[parent], starts[parent] + slots[parent].length)
            after, _ = found.setdefault(depths[parent], {}).setdefault(parent, ([], [seen]))
            after.append(own)
            parent = slots[parent].parent
    return [[*found[depth].values()] for depth in sorted(found)]
