"""Sequences, and the outputs of models for them.

Shapes: B sequences, T positions. Log-probs at position t are those of the token at t,
and the value at t is the expected return before the token at t is chosen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from mindrl.batch.likely_tokens import LikelyTokens
from mindrl.batch.packing import Compact
from mindrl.batch.prompts import PlacedImage

StageT = TypeVar("StageT", bound="Sequences")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences(Compact):
    """Token sequences whose log-probs are to be computed."""

    tokens_BT: Tensor
    """int64, padded on the right."""
    lengths_B: Tensor
    """int64, tokens of each sequence."""
    response_mask_BT: Tensor
    """bool; True for tokens that need a log-prob. Never True at position 0."""
    image_numbers_BI: Tensor | None = None
    """int64; numbers of the pictures of each sequence, in order, 0 after the last. Each has a
    token at least, so `rows` cuts none off. None without pictures."""
    image_starts_BI: Tensor | None = None
    """int64; position of the first token of each picture."""
    likely: LikelyTokens | None = None
    """Most probable tokens of a teacher, whose log-probs an update computes too. None without."""
    route_keys_B: Tensor | None = None
    """int64; names under which workers keep the experts of each sequence's tokens. None without
    router replay."""
    teacher_B: Tensor | None = None
    """int64; number of the teacher of each sequence, as of `TeacherConfig.number`. None: one
    teacher."""
    tree_B: Tensor | None = None
    """int64; equal for the turns of conversations about one prompt, which may share their first
    tokens: see `batch/sequence_trees.py`. None: equal prompts are shared."""
    routes_BTLK: Tensor | None = None
    """Experts of tokens, only inside a worker: see `training/routes.py`."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.lengths_B)

    def rows(self, index: Tensor | slice) -> Self:
        """Select sequences in the order of `index`, cut to the longest of them."""
        longest = int(self.lengths_B[index].max())

        def chosen(column: Tensor) -> Tensor:
            column = column[index]
            return column[:, :longest].contiguous() if column.dim() > 1 else column

        likely = None if self.likely is None else self.likely.rows(index)
        return replace(self._changed(chosen), likely=likely)

    def with_images(self, images: Sequence[Sequence[PlacedImage]]) -> Self:
        """Set the pictures of each sequence."""
        most = max(map(len, images), default=0)
        if not most:
            return self
        numbers_BI = torch.zeros(len(images), most, dtype=torch.int64)
        starts_BI = torch.zeros_like(numbers_BI)
        for row, placed in enumerate(images):
            for index, each in enumerate(placed):
                numbers_BI[row, index], starts_BI[row, index] = each.number, each.first
        return replace(self, image_numbers_BI=numbers_BI, image_starts_BI=starts_BI)

    def with_route_keys(self, keys: Sequence[int] | None = None) -> Self:
        """Name the sequences for the routes of their tokens; None numbers them."""
        named = range(len(self)) if keys is None else keys
        return replace(self, route_keys_B=torch.tensor(named, dtype=torch.int64))

    def by_teacher(self) -> list[Tensor]:
        """Return the rows of each teacher that has any, in the order of its number."""
        if self.teacher_B is None:
            return [torch.arange(len(self))]
        return [
            torch.nonzero(self.teacher_B == each)[:, 0] for each in torch.unique(self.teacher_B)
        ]

    def images(self) -> list[list[tuple[int, int]]]:
        """Return number and first position of each picture, sequence by sequence."""
        if self.image_numbers_BI is None or self.image_starts_BI is None:
            return [[] for _ in range(len(self))]
        rows = zip(self.image_numbers_BI.tolist(), self.image_starts_BI.tolist(), strict=True)
        return [
            [(number, first) for number, first in zip(*row, strict=True) if number] for row in rows
        ]

    def to(self, device: torch.device) -> Self:
        """Copy all columns to a device, except those of likely tokens."""
        return self._changed(lambda column: column.to(device))

    def into(self, stage: type[StageT], **columns: Tensor | LikelyTokens | None) -> StageT:
        """Create a batch of another stage from the columns that both have, and new ones."""
        own = {field.name for field in fields(self)}
        shared = own & {field.name for field in fields(stage)} - columns.keys()
        values: dict[str, Any] = {name: getattr(self, name) for name in shared} | columns
        return stage(**values)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Change each tensor."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {
            name: change(each) for name, each in columns.items() if isinstance(each, Tensor)
        }
        return replace(self, **changed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Logprobs(Compact):
    """Log-probs of a batch of sequences, on the host, 0 outside the response."""

    logprobs_BT: Tensor
    """float32, nats."""
    likely: LikelyTokens | None = None
    """The most probable tokens. None for a model that returns none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Values(Compact):
    """A critic's values of a batch of sequences, on the host."""

    values_BT: Tensor
    """float32, in units of reward; 0 outside the response."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SequenceScores:
    """A reward model's scores of a batch of sequences, on the host."""

    rewards_B: Tensor
    """float32, one per sequence."""
