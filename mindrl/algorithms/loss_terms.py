"""What every loss of tokens returns, and how tokens are weighed into it.

Shapes: B sequences, T positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossTerms:
    """What one micro-batch adds to an update."""

    loss: Tensor
    """0-dim, with gradient."""
    metrics: dict[str, Tensor]
    """Detached 0-dim weighted sums: add them over micro-batches and ranks for the mean."""

    @classmethod
    def of(cls, loss: Tensor, sums: Mapping[str, Tensor]) -> Self:
        """Take a loss, and the sums that are to be seen beside it."""
        return cls(loss=loss, metrics={name: term.detach() for name, term in sums.items()})


def weighted_sums(terms_BT: Mapping[str, Tensor], weights_BT: Tensor) -> dict[str, Tensor]:
    """Add up each term of the tokens, by their weights."""
    return {name: (weights_BT * term_BT).sum() for name, term_BT in terms_BT.items()}


def used(name: str, values_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """Zero what has no weight, before any arithmetic: 0 * NaN is NaN, backward as well.

    Raises:
        ValueError: if the shapes differ.
    """
    if values_BT.shape != weights_BT.shape:
        raise ValueError(
            f"{name} has shape {list(values_BT.shape)}; "
            f"it must be that of token_weights_BT, {list(weights_BT.shape)}"
        )
    return values_BT.masked_fill(weights_BT == 0, 0.0)
