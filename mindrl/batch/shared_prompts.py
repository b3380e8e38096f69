"""Sequences that begin with the same prompt, kept together so that it is computed once.

A group is the sequences of a batch that begin with the same prompt: the tokens before the first
requested one. Found by comparing tokens, so it holds samples of one prompt, pairs of answers, and
answers of several prompts that are equal. Shapes: B sequences, T positions.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from mindrl.batch.balance import MicroBatching, partition
from mindrl.batch.sequences import Sequences

_SHARES_PER_REPLICA = 2
"""Fewer groups than this are divided, so that replicas have equal work."""


class SamePrompt(NamedTuple):
    """Sequences that begin with the same tokens."""

    rows: tuple[int, ...]
    prompt: int
    """Number of those tokens; 0 for a sequence alone."""

    def halves(self) -> "list[SamePrompt]":
        """Return two groups of half the sequences."""
        middle = len(self.rows) // 2
        return [
            _same_prompt(part, self.prompt) for part in (self.rows[:middle], self.rows[middle:])
        ]


def same_prompts(sequences: Sequences, *, shares_prompts: bool) -> list[SamePrompt]:
    """Return each sequence in one group, in the order of their first sequences.

    Without `shares_prompts` each sequence is a group alone.
    """
    if not shares_prompts:
        return [_same_prompt([row], 0) for row in range(len(sequences))]
    first_B = sequences.response_mask_BT.to(torch.uint8).argmax(1)
    # No token is requested at position 0: a sequence without any shares nothing. One that is only
    # read after its end has no token besides its prompt.
    shares_B = (first_B > 0) & (first_B < sequences.lengths_B)
    rows_of: dict[tuple[int, bytes], list[int]] = {}
    for row, (first, shares) in enumerate(zip(first_B.tolist(), shares_B.tolist(), strict=True)):
        key = sequences.tokens_BT[row, :first].numpy().tobytes() if shares else row.to_bytes(8)
        rows_of.setdefault((first, key), []).append(row)
    return [_same_prompt(rows, first) for (first, _), rows in rows_of.items()]


def deal(
    found: Sequence[SamePrompt],
    lengths: Sequence[int],
    costs: Callable[[Sequence[int]], Sequence[float]],
    count: int,
) -> list[list[int]]:
    """Return the rows of `count` replicas of about equal cost, with few groups divided.

    `costs` maps lengths of sequences to their costs. A prompt costs once per replica.
    """
    parts = sorted(found, key=lambda group: -len(group.rows))
    while len(parts) < _SHARES_PER_REPLICA * count and len(parts[0].rows) > 1:
        parts = sorted([*parts[0].halves(), *parts[1:]], key=lambda group: -len(group.rows))
    of_rows = costs(lengths)
    of_prompts = costs([part.prompt for part in parts])
    of_parts = [
        sum(of_rows[row] for row in part.rows) - (len(part.rows) - 1) * of_prompt
        for part, of_prompt in zip(parts, of_prompts, strict=True)
    ]
    return _rows_of(partition(of_parts, count), parts)


def cut(
    found: Sequence[SamePrompt], lengths: Sequence[int], micro_batching: MicroBatching
) -> list[list[int]]:
    """Return the rows of each micro-batch: see `MicroBatching.cut`. A prompt counts once in each.

    Raises:
        ValueError: A sequence is longer than `micro_batching.tokens`.
    """
    if micro_batching.tokens is None:
        return micro_batching.cut(lengths)
    parts = [part for each in found for part in _fitting(each, lengths, micro_batching.tokens)]
    sizes = [_tokens(part, lengths) for part in parts]
    return _rows_of(micro_batching.cut(sizes), parts)


def _same_prompt(rows: Sequence[int], prompt: int) -> SamePrompt:
    return SamePrompt(tuple(rows), prompt if len(rows) > 1 else 0)


def _tokens(group: SamePrompt, lengths: Sequence[int]) -> int:
    return group.prompt + sum(lengths[row] - group.prompt for row in group.rows)


def _fitting(group: SamePrompt, lengths: Sequence[int], budget: int) -> list[SamePrompt]:
    """Divide a group until each part has at most `budget` tokens, or is one sequence."""
    if len(group.rows) == 1 or _tokens(group, lengths) <= budget:
        return [group]
    return [part for half in group.halves() for part in _fitting(half, lengths, budget)]


def _rows_of(groups: Sequence[Sequence[int]], parts: Sequence[SamePrompt]) -> list[list[int]]:
    return [sorted(row for index in group for row in parts[index].rows) for group in groups]
