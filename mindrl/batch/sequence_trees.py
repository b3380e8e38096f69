"""Trees of sequences that begin alike: a tree holds the tokens before a fork only once.

A sequence takes only prompt tokens from another: those before its first requested one. In the other
they may be a prompt or a response. So samples of a prompt share it, and a later turn of a
conversation shares the tokens that its prompt repeats. Trees are found by comparing tokens.

Shapes: B sequences, T positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from mindrl.batch.sequences import Sequences

_WORTH_A_SLOT = 16
"""A fork that would save fewer tokens moves to the fork before it, because slots have costs."""

_Tokens = NDArray[Any]
"""int64; tokens of a sequence without padding."""


class Slot(NamedTuple):
    """Consecutive tokens of a sequence."""

    row: int
    first: int
    stop: int
    parent: int | None = None
    """Index of the slot with the tokens directly before `first`; None if there are none."""

    @property
    def length(self) -> int:
        """Tokens without padding."""
        return self.stop - self.first


class SequenceTree(NamedTuple):
    """Sequences that begin alike."""

    rows: tuple[int, ...]
    """Depth-first order: a row precedes those that share most with it."""
    known: tuple[int, ...]
    """Number of tokens at the start of each row that earlier rows have."""

    def halves(self) -> "list[SequenceTree]":
        """Return two trees of half the sequences."""
        middle = len(self.rows) // 2
        return [
            SequenceTree(self.rows[:middle], self.known[:middle]),
            SequenceTree(self.rows[middle:], (0, *self.known[middle + 1 :])),
        ]

    def tokens(self, lengths: Sequence[int]) -> int:
        """Return the number of tokens, from those of each sequence of the batch.

        A half may need a few more: a fork of the whole may not be worth a slot in it.
        """
        return sum(lengths[row] for row in self.rows) - sum(self.known)


def slots_of(sequences: Sequences, *, shares_prompts: bool) -> list[Slot]:
    """Return the slots of a pack, each after its parent.

    Without `shares_prompts` each sequence has one slot.
    """
    slots: list[Slot] = []
    for of_tree in _slots_of_trees(sequences, shares_prompts):
        before = len(slots)
        slots += [
            slot if slot.parent is None else slot._replace(parent=before + slot.parent)
            for slot in of_tree
        ]
    return slots


def sequence_trees(sequences: Sequences, *, shares_prompts: bool) -> list[SequenceTree]:
    """Return each sequence in one tree, in the order of their first sequences.

    Without `shares_prompts` each sequence is a tree alone.
    """
    trees = []
    for slots in _slots_of_trees(sequences, shares_prompts):
        known: dict[int, int] = {}
        for slot in slots:
            known.setdefault(slot.row, slot.first)
        trees.append(SequenceTree(tuple(known), tuple(known.values())))
    return trees


def _slots_of_trees(sequences: Sequences, shares_prompts: bool) -> list[list[Slot]]:
    """Return the slots of each tree; parents are indices in the tree."""
    lengths = sequences.lengths_B.tolist()
    if not shares_prompts:
        return [[Slot(row, 0, length)] for row, length in enumerate(lengths)]
    first_B = sequences.response_mask_BT.to(torch.uint8).argmax(1)
    # Position 0 is never requested: `first_B` is 0 without a requested token, so without sharing. A
    # sequence that is only read after its end has only its prompt.
    shares_B = (first_B > 0) & (first_B < sequences.lengths_B)
    padded = sequences.tokens_BT.numpy()
    tokens = [row[:length] for row, length in zip(padded, lengths, strict=True)]
    prompts, tree_B = first_B.tolist(), sequences.tree_B
    trees: dict[object, list[int]] = {}
    for row, shares in enumerate(shares_B.tolist()):
        prompt = tokens[row][: prompts[row]].tobytes() if tree_B is None else int(tree_B[row])
        trees.setdefault(prompt if shares else (row,), []).append(row)
    return [_laid_out(_grown(rows, tokens, prompts)) for rows in trees.values()]


@dataclass(eq=False)
class _Branch:
    """Tokens that a sequence does not take from another."""

    row: int
    first: int
    stop: int
    source: "_Branch | None"
    """Branch with the tokens before `first`."""
    forks: "dict[int, list[_Branch]]" = field(default_factory=dict)
    """Branches of other sequences, by the position of their first token."""


def _grown(rows: Sequence[int], tokens: Sequence[_Tokens], prompts: Sequence[int]) -> list[_Branch]:
    """Return the branches without a source."""
    roots: list[_Branch] = []
    # A response is added before the longer prompts that repeat it.
    for row in sorted(rows, key=lambda row: (prompts[row], row)):
        source, first = _fork(roots, tokens, tokens[row][: prompts[row]])
        branch = _Branch(row, first, len(tokens[row]), source)
        (roots if source is None else source.forks.setdefault(first, [])).append(branch)
    return roots


def _fork(
    roots: Sequence[_Branch], tokens: Sequence[_Tokens], prompt: _Tokens
) -> tuple[_Branch | None, int]:
    """Return the branch with most of a prompt, and the number of tokens to take."""
    source, found = None, 0
    waiting = [*roots]
    # Includes branches appended in the loop.
    for branch in waiting:
        end = branch.first + _same(prompt[branch.first :], tokens[branch.row][branch.first :])
        if end > found:
            source, found = branch, end
        if found == len(prompt):
            break
        waiting += [each for first, of in branch.forks.items() if first <= end for each in of]
    if source is None:
        return None, 0
    before = max(first for first in (source.first, *source.forks) if first <= found)
    if before and found - before < _WORTH_A_SLOT:
        return (source if before > source.first else source.source), before
    return source, found


def _same(ours: _Tokens, theirs: _Tokens) -> int:
    """Return the number of equal tokens at the start of both."""
    length = min(len(ours), len(theirs))
    differs = ours[:length] != theirs[:length]
    return int(differs.argmax()) if differs.any() else length


def _laid_out(roots: Sequence[_Branch]) -> list[Slot]:
    """Cut branches at their forks; a branch continues before those that fork from it there."""
    slots: list[Slot] = []
    waiting: list[tuple[_Branch, int, int | None]] = [(root, 0, None) for root in reversed(roots)]
    while waiting:
        branch, first, parent = waiting.pop()
        stop = min((fork for fork in branch.forks if fork > first), default=branch.stop)
        at = len(slots)
        slots.append(Slot(branch.row, first, stop, parent))
        waiting += [(fork, stop, at) for fork in reversed(branch.forks.get(stop, []))]
        if stop < branch.stop:
            waiting.append((branch, stop, at))
    return slots
