"""Tokens that reduce entropy most: those whose log-prob and advantage rise together.

A few tokens with the largest covariance cause most of the reduction: arXiv 2505.22617.

Shapes: B sequences, T positions.
"""

import torch
from torch import Tensor


def covariances(logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return (log p - its mean) * (A - its mean) of each token, eq. 10; 0 outside the mask.

    The means are over the mask, bool, which holds the tokens of a whole update.
    """
    parts = []
    for values_BT in (logprobs_BT, advantages_BT):
        inside_N = values_BT[mask_BT].double()
        parts.append((values_BT.double() - inside_N.mean()).masked_fill(~mask_BT, 0.0))
    return parts[0] * parts[1]


def some_between(
    values_BT: Tensor, mask_BT: Tensor, bounds: tuple[float, float], share: float, seed: int
) -> Tensor:
    """Select a fraction of the tokens, at least one, at random from those within the bounds."""
    low, high = bounds
    wanted = max(1, int(share * mask_BT.sum()))
    places_N = torch.nonzero((mask_BT & (values_BT >= low) & (values_BT <= high)).flatten())[:, 0]
    drawn = torch.randperm(len(places_N), generator=torch.Generator().manual_seed(seed))
    picked = torch.zeros(mask_BT.numel(), dtype=torch.bool)
    picked[places_N[drawn[:wanted]]] = True
    return picked.view(mask_BT.shape)


def highest(values_BT: Tensor, mask_BT: Tensor, share: float) -> Tensor:
    """Select a fraction of the tokens, at least one, with the largest values; ties by position."""
    wanted = max(1, int(share * mask_BT.sum()))
    ranked_BT = values_BT.masked_fill(~mask_BT, -torch.inf).flatten()
    picked = torch.zeros(mask_BT.numel(), dtype=torch.bool)
    picked[ranked_BT.argsort(descending=True, stable=True)[:wanted]] = True
    return picked.view(mask_BT.shape) & mask_BT
