"""Advantages of responses and of tokens relative to a baseline.

GRPO compares the responses to one prompt; generalised advantage estimation uses a critic.

Shapes: B sequences, P groups (the responses to one prompt form a group), T positions. The value at
position t is the expected return before the token at t is chosen.
"""

from typing import NamedTuple

import torch
from torch import Tensor

_EPSILON = 1e-8
"""Added to a variance before taking its root."""


class GroupedRewards(NamedTuple):
    """Rewards with statistics of their groups."""

    centred_B: Tensor
    """Reward minus the mean of its group; exactly 0 if all rewards of the group are equal."""
    index_B: Tensor
    """int64; index of the group, from 0."""
    count_B: Tensor
    """Number of responses in the group, in the rewards' dtype."""
    std_B: Tensor
    """The group's sample std (divisor n - 1); 0 in a group of one."""


def groups_of(rewards_B: Tensor, group_B: Tensor) -> GroupedRewards:
    """Return statistics of each reward's group. Group ids are int64, in any order.

    Groups may have any size.

    Raises:
        ValueError: if the shapes are not the same [B].
    """
    if rewards_B.ndim != 1 or rewards_B.shape != group_B.shape:
        raise ValueError(
            f"rewards_B has shape {list(rewards_B.shape)} and group_B "
            f"{list(group_B.shape)}; both must have the same shape [B]"
        )
    ids_P, index_B = torch.unique(group_B, return_inverse=True)
    zeros_P = rewards_B.new_zeros(ids_P.shape)
    count_P = zeros_P.index_add(0, index_B, torch.ones_like(rewards_B))
    # Relative to the group's lowest reward, equal rewards are exact zeros, so dividing by a tiny
    # deviation cannot amplify rounding of their mean.
    lowest_P = zeros_P.scatter_reduce(0, index_B, rewards_B, "amin", include_self=False)
    above_B = rewards_B - lowest_P[index_B]
    mean_P = zeros_P.index_add(0, index_B, above_B) / count_P
    centred_B = above_B - mean_P[index_B]
    squares_P = zeros_P.index_add(0, index_B, centred_B.square())
    std_P = (squares_P / (count_P - 1).clamp(min=1)).sqrt()
    return GroupedRewards(centred_B, index_B, count_P[index_B], std_P[index_B])


def group_normalised_advantages(
    rewards_B: Tensor, group_B: Tensor, *, epsilon: float = 1e-6
) -> Tensor:
    """Return (reward - group mean) / (group std + epsilon), one number per sequence.

    GRPO's outcome supervision, DeepSeekMath (arXiv 2402.03300), section 4.1.2. The std is the
    sample std (divisor n - 1), as in `torch.std`, TRL and verl. A group of one, or with equal
    rewards, gets exactly 0, because it has no signal. The result has the dtype and device of the
    rewards. Epsilon is in units of reward.

    Raises:
        ValueError: if the shapes are not the same [B], or epsilon is not above 0.
    """
    if epsilon <= 0:
        raise ValueError(f"epsilon={epsilon} must be above 0")
    groups = groups_of(rewards_B, group_B)
    return groups.centred_B / (groups.std_B + epsilon)


def token_rewards(scores_B: Tensor, penalty_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return rewards per token: the score at the last response token, minus each penalty.

    The penalty is in units of reward, such as a coefficient times an estimate of the KL to a
    reference; its values outside the response are ignored. The mask, bool, is True at response
    tokens: at least one in each sequence. The result has the dtype of the scores.
    """
    positions_T = torch.arange(mask_BT.size(1), device=mask_BT.device)
    last_B = (mask_BT * positions_T).amax(dim=1)
    rewards_BT = scores_B.new_zeros(mask_BT.shape)
    rewards_BT = rewards_BT.scatter(1, last_B[:, None], scores_B[:, None])
    return rewards_BT - penalty_BT.masked_fill(~mask_BT, 0.0)


def gae_advantages(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Return the advantage and the return of each response token, GAE (arXiv 1506.02438) eq. 16.

    delta_t = r_t + gamma * V_{t+1} - V_t and A_t = delta_t + gamma * lam * A_{t+1}, where t + 1 is
    the next response token of the sequence. A response ends at its last token, even if it was cut
    at the length limit: the value after it is 0. A value is the critic's expectation before the
    token was chosen, in the rewards' dtype; values and rewards outside the mask are ignored. gamma
    discounts per token, 0 to 1; lam 0 trusts the critic, 1 the rewards.

    The first result is the advantages, not whitened; the second is the returns, advantage plus
    value, which are the critic's targets. Both are 0 outside the response.
    """
    advantages_BT = torch.zeros_like(values_BT)
    following_B = values_BT.new_zeros(len(values_BT))
    advantage_B = following_B
    for t in reversed(range(values_BT.size(1))):
        mask_B = mask_BT[:, t]
        delta_B = rewards_BT[:, t] + gamma * following_B - values_BT[:, t]
        advantage_B = torch.where(mask_B, delta_B + gamma * lam * advantage_B, advantage_B)
        following_B = torch.where(mask_B, values_BT[:, t], following_B)
        advantages_BT[:, t] = advantage_B.masked_fill(~mask_B, 0.0)
    returns_BT = (advantages_BT + values_BT).masked_fill(~mask_BT, 0.0)
    return advantages_BT, returns_BT


def whiten(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Shift and scale the values in the mask to mean 0 and variance 1 (divisor n); 0 elsewhere.

    Equal values become 0, because they have no signal.
    """
    # In float64, so that rounding of the mean is not amplified if all values are equal.
    inside_N = values_BT[mask_BT].double()
    centred_N = inside_N - inside_N.mean()
    deviation = (centred_N.square().mean() + _EPSILON).sqrt()
    whitened_BT = torch.zeros_like(values_BT)
    whitened_BT[mask_BT] = (centred_N / deviation).to(values_BT.dtype)
    return whitened_BT


def explained_variance(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> float:
    """Return 1 - Var(return - value) / Var(return) over the mask.

    A value of 1 is a perfect critic, 0 one that predicts only the mean, below 0 a worse one. If all
    returns are equal the result is 0.
    """
    returns_N = returns_BT[mask_BT].double()
    error_N = returns_N - values_BT[mask_BT].double()
    spread = returns_N.var(correction=0).item()
    return 0.0 if spread == 0 else 1.0 - error_N.var(correction=0).item() / spread
