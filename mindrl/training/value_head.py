"""The head of a critic whose folder has none."""

import torch
from torch import Tensor


def drawn_value_head(hidden_size: int, seed: int) -> Tensor:
    """Return a random head [1, H], the same on every rank; as wide as TRL draws its own.

    Normal, with a deviation of 1 / sqrt(H + 1): values of size 1 where hidden states are.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, hidden_size, generator=generator).div((hidden_size + 1) ** 0.5)
