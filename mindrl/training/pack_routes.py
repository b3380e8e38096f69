"""Routes of one pack as routers read them: which experts each token uses in each layer.

Routes are stored as expert + 1; 0 lets a token choose. Shapes: S tokens that this rank's routers
read, L layers with experts of this rank, K experts of a token.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(kw_only=True)
class PackRoutes:
    """Routes of one pack, read and written by the routers of this rank."""

    given_LSK: Tensor | None = None
    """Routes to replay, on the device; None lets all tokens choose."""
    taken: dict[int, Tensor] = field(default_factory=dict)
    """Experts [S, K] that each layer chose, if none is replayed."""
    differing: list[Tensor] = field(default_factory=list)
    """Counts of replayed tokens per call of a router: those it would route differently, and all."""

    def chosen(self, layer: int, own_SK: Tensor) -> Tensor:
        """Return the experts to use in a layer: the given ones, else those that the router chose.

        A recomputed layer calls it again, with the same result.
        """
        if self.given_LSK is None:
            self.taken[layer] = own_SK.detach()
            return own_SK
        given_SK = self.given_LSK[layer].long()
        used_SK = torch.where(given_SK > 0, given_SK - 1, own_SK)
        differs_S = (used_SK.sort(-1).values != own_SK.sort(-1).values).any(-1)
        self.differing.append(torch.stack([differs_S.sum(), (given_SK[:, 0] > 0).sum()]))
        return used_SK
