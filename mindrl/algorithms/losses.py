"""Inputs and results of losses.

A loss is a function from `LossInputs` to `LossTerms`: `PolicyLoss`, `ValueLoss`, `answer_loss`. Its
options are bound to it before the run. Every loss is a weighted sum over tokens.

Shapes: B sequences, T positions, N response positions of this rank, K likely tokens at each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from torch import Tensor

from mindrl.batch.experience import WeightedSequences

BatchT = TypeVar("BatchT", bound=WeightedSequences)
Total = Callable[[Tensor], Tensor]
"""Sums a number per sequence, [B], over the ranks that share its tokens; without gradient."""


def of_one_rank(values_B: Tensor) -> Tensor:
    """Return the values unchanged: each sequence is on one rank."""
    return values_B


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LikelyLogprobs:
    """Log-probs of a teacher's most probable tokens, in nats, contiguous, without padding."""

    ours_NK: Tensor
    """Of the model, with gradient."""
    theirs_NK: Tensor
    """Of the teacher."""
    places_N: Tensor
    """int64; index of each position in the flattened [B, T]."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossInputs(Generic[BatchT]):
    """A micro-batch after the forward pass, on the device."""

    outputs: tuple[Tensor, ...]
    """Of the model's head, [B, T] each, with gradient: log-probs and entropies of a vocabulary, in
    nats, or values."""
    batch: BatchT
    """Columns of the update, as the trainer made them."""
    weights_BT: Tensor
    """float32; `token_weights_BT` of this rank's tokens, 0 for those of other ranks."""
    total: Total = of_one_rank
    likely: LikelyLogprobs | None = None
    """Of a teacher's most probable tokens. None if the loss uses none."""

    @classmethod
    def of(
        cls,
        outputs: tuple[Tensor, ...],
        batch: BatchT,
        own_BT: Tensor,
        total: Total = of_one_rank,
        likely: LikelyLogprobs | None = None,
    ) -> Self:
        """Create inputs from a micro-batch on the host; `own_BT` is 1 for tokens of this rank."""
        there = batch.to(own_BT.device)
        weights_BT = there.token_weights_BT * own_BT
        return cls(outputs=outputs, batch=there, weights_BT=weights_BT, total=total, likely=likely)

    def used(self, name: str, values_BT: Tensor) -> Tensor:
        """Return values that are 0 for tokens without weight, as `used` does."""
        return used(name, values_BT, self.weights_BT)

    def means(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this micro-batch's part of the mean over the update, given its weighted sums."""
        whole_B = self.batch.weight_sum_B
        if whole_B is None:
            return {**sums}
        return {name: part / whole_B[0] for name, part in sums.items()}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossTerms:
    """Contribution of one micro-batch to an update."""

    loss: Tensor
    """0-dim, with gradient."""
    metrics: dict[str, Tensor]
    """Detached, 0-dim; their sum over micro-batches and ranks is the mean, or the loss."""

    @classmethod
    def of(cls, loss: Tensor, sums: Mapping[str, Tensor]) -> Self:
        """Create terms from a loss and the sums to report."""
        return cls(loss=loss, metrics={name: term.detach() for name, term in sums.items()})


Loss = Callable[[LossInputs[BatchT]], LossTerms]


def weighted_sums(terms_BT: Mapping[str, Tensor], weights_BT: Tensor) -> dict[str, Tensor]:
    """Return the weighted sum of each term over the tokens."""
    return {name: (weights_BT * term_BT).sum() for name, term_BT in terms_BT.items()}


def used(name: str, values_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """Set values without weight to 0 before any arithmetic: 0 * NaN is NaN, also backward.

    Raises:
        ValueError: if the shapes differ.
    """
    if values_BT.shape != weights_BT.shape:
        raise ValueError(
            f"{name} has shape {list(values_BT.shape)}; must be that of token_weights_BT, "
            f"{list(weights_BT.shape)}"
        )
    return values_BT.masked_fill(weights_BT == 0, 0.0)
