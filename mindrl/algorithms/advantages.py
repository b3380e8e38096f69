"""Advantages: how much better a response did than what it is compared with.

Shapes: B sequences, P groups (the responses to one prompt form a group).
"""

import torch
from torch import Tensor


def group_normalised_advantages(
    rewards_B: Tensor, group_B: Tensor, *, epsilon: float = 1e-6
) -> Tensor:
    """Return (reward - group mean) / (group std + epsilon), one number per sequence.

    GRPO's outcome supervision, DeepSeekMath (arXiv 2402.03300), section 4.1.2. The std is
    the sample std (divisor n - 1), as in `torch.std`, TRL and verl. A group of one, or one
    whose rewards are all equal, gets exactly 0: it holds no signal. The result has the dtype and
    device of the rewards. Group ids are int64, in any order; groups may differ in size. Epsilon
    is in units of reward.

    Raises:
        ValueError: if the shapes are not one and the same [B], or epsilon is not above 0.
    """
    if rewards_B.ndim != 1 or rewards_B.shape != group_B.shape:
        raise ValueError(
            f"rewards_B has shape {list(rewards_B.shape)} and group_B {list(group_B.shape)}; "
            "both must be the same [B]"
        )
    if epsilon <= 0:
        raise ValueError(f"epsilon={epsilon} must be above 0")
    ids_P, index_B = torch.unique(group_B, return_inverse=True)
    zeros_P = rewards_B.new_zeros(ids_P.shape)
    count_P = zeros_P.index_add(0, index_B, torch.ones_like(rewards_B))
    # Measured from the group's lowest reward, equal rewards are exact zeros, so that no
    # rounding of their mean is blown up by the division by epsilon.
    lowest_P = zeros_P.scatter_reduce(0, index_B, rewards_B, "amin", include_self=False)
    above_B = rewards_B - lowest_P[index_B]
    mean_P = zeros_P.index_add(0, index_B, above_B) / count_P
    centred_B = above_B - mean_P[index_B]
    squares_P = zeros_P.index_add(0, index_B, centred_B.square())
    std_P = (squares_P / (count_P - 1).clamp(min=1)).sqrt()
    return centred_B / (std_P[index_B] + epsilon)
