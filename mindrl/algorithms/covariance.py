"""Tokens that reduce entropy most: those whose log-prob and advantage rise together.

The few with the largest covariance carry most of it: arXiv 2505.22617.

Shapes: B sequences, T positions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mindrl.batch.prompts import sequence_seed
from mindrl.batch.sequences import Sequences
from mindrl.config.rl import RLConfig


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


@dataclass(frozen=True, kw_only=True)
class CovariancePick:
    """Selects the tokens of an update that `clip_cov` and `kl_cov` restrain."""

    rl: RLConfig
    seed: int
    """Seed of the run. The selection depends only on it, the update and its tokens."""

    def __call__(
        self, batch: Sequences, old_logprobs_BT: Tensor, advantages_BT: Tensor, update: int
    ) -> Tensor:
        """Return the selected tokens of a whole update; `update` is its index in the step."""
        mask_BT, rl = batch.response_mask_BT, self.rl
        values_BT = covariances(old_logprobs_BT, advantages_BT, mask_BT)
        if rl.policy_loss == "kl_cov":
            return highest(values_BT, mask_BT, rl.kl_cov_ratio)
        seed = sequence_seed(self.seed, step=int(batch.tokens_BT.sum()), uid=update, sample=0)
        bounds = (rl.clip_cov_lb, rl.clip_cov_ub)
        return some_between(values_BT, mask_BT, bounds, rl.clip_cov_ratio, seed)
