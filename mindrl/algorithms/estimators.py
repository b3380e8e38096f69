"""Advantage estimators: the gain of each response, or token, over a baseline.

`rl_config.adv_estimator` names one of `ESTIMATORS`, or your own function that takes
`RatedResponses` and returns one number per response or per token.

Shapes: B sequences, P groups (the responses to one prompt form a group), T positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mindrl.algorithms.advantages import (
    explained_variance,
    gae_advantages,
    group_normalised_advantages,
    groups_of,
    token_rewards,
    whiten,
)
from mindrl.config import rl
from mindrl.config.own_functions import named_function, trial


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RatedResponses:
    """Responses of a step with their rewards."""

    rewards_B: Tensor
    """float32; reward of each whole response, before the KL penalty."""
    group_B: Tensor
    """int64; responses with the same number answer the same prompt."""
    mask_BT: Tensor
    """bool; response tokens."""
    baseline_B: Tensor | None = None
    """float32; reward of the greedy response to the same prompt. None without greedy responses."""
    penalty_BT: Tensor | None = None
    """float32; KL penalty of each token in units of reward. None without one."""
    values_BT: Tensor | None = None
    """float32; the critic's expectation before each token. None without a critic."""
    turn_rewards_BT: Tensor | None = None
    """float32; the part of the reward that belongs to the last token of each turn. None without an
    environment."""
    gamma: float = 1.0
    """Discount per token."""
    lam: float = 1.0
    """Lambda of generalised advantage estimation."""

    def returns(self) -> Tensor:
        """Return the reward of each response minus the penalties of its tokens, [B]."""
        if self.penalty_BT is None:
            return self.rewards_B
        return self.rewards_B - self.penalty_BT.masked_fill(~self.mask_BT, 0.0).sum(dim=1)

    def token_rewards(self) -> Tensor:
        """Return the reward at each response's last token minus each token's penalty, [B, T].

        Rewards of turns are at the last token of each turn.
        """
        penalty_BT, turns_BT = self.penalty_BT, self.turn_rewards_BT
        if penalty_BT is None:
            penalty_BT = torch.zeros(self.mask_BT.shape)
        if turns_BT is None:
            return token_rewards(self.rewards_B, penalty_BT, self.mask_BT)
        rest_B = self.rewards_B - turns_BT.sum(dim=1)
        return token_rewards(rest_B, penalty_BT, self.mask_BT) + turns_BT


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Estimate:
    """Result of an estimator."""

    advantages_BT: Tensor
    """float32; 0 outside the responses."""
    returns_BT: Tensor | None = None
    """float32; targets of the critic. None if the estimator uses no critic."""
    metrics: Mapping[str, float] = field(default_factory=dict)


_FIELD = "rl_config.adv_estimator"
Estimator = Callable[[RatedResponses], Tensor | Estimate]


def group_norm(rated: RatedResponses) -> Tensor:
    """Subtract the group's mean and divide by its deviation: GRPO (arXiv 2402.03300)."""
    return group_normalised_advantages(rated.returns(), rated.group_B)


def group_mean(rated: RatedResponses) -> Tensor:
    """Subtract the group's mean only: Dr. GRPO (arXiv 2503.20783)."""
    return groups_of(rated.returns(), rated.group_B).centred_B


def rloo(rated: RatedResponses) -> Tensor:
    """Subtract the mean of the other responses: RLOO (arXiv 2402.14740)."""
    groups = groups_of(rated.returns(), rated.group_B)
    return groups.centred_B * groups.count_B / (groups.count_B - 1).clamp(min=1)


def opo(rated: RatedResponses) -> Tensor:
    """Subtract the group's length-weighted mean, of minimum variance: OPO (arXiv 2505.23585).

    A group with equal rewards gets exactly 0.
    """
    centred_B, index_B, *_ = groups_of(rated.returns(), rated.group_B)
    lengths_B = rated.mask_BT.sum(dim=1).to(centred_B.dtype)
    zeros_P = centred_B.new_zeros(int(index_B.max()) + 1)
    weighed_P = zeros_P.index_add(0, index_B, centred_B * lengths_B)
    tokens_P = zeros_P.index_add(0, index_B, lengths_B)
    return centred_B - (weighed_P / tokens_P)[index_B]


def pass_at_k(rated: RatedResponses) -> Tensor:
    """Return the best response's lead over the second of its group, and 0 for the others.

    An unbiased gradient of the expected best of k, with groups of k: arXiv 2503.19595.
    """
    returns_B = rated.returns()
    advantages_B = torch.zeros_like(returns_B)
    for group in torch.unique(rated.group_B):
        rows = torch.nonzero(rated.group_B == group)[:, 0]
        if len(rows) > 1:
            best, at = returns_B[rows].topk(2)
            advantages_B[rows[at[0]]] = best[0] - best[1]
    return advantages_B


def remax(rated: RatedResponses) -> Tensor:
    """Subtract the reward of the greedy response: ReMax (arXiv 2310.10505), eq. 6.

    With a KL penalty a token gets its own penalty and those of the tokens after it.
    """
    assert rated.baseline_B is not None, "the trainer provides it"
    return (_rewards_to_go(rated, gamma=1.0) - rated.baseline_B[:, None]) * rated.mask_BT


def _rewards_to_go(rated: RatedResponses, *, gamma: float) -> Tensor:
    """Return the sum of a token's reward and of the discounted ones after it, [B, T]."""
    nothing_BT = torch.zeros(rated.mask_BT.shape)
    returns_BT, _ = gae_advantages(
        rated.token_rewards(), nothing_BT, rated.mask_BT, gamma=gamma, lam=1.0
    )
    return returns_BT


def reinforce_plus_plus(rated: RatedResponses) -> Tensor:
    """Whiten the discounted return of each token over the step: REINFORCE++ (arXiv 2501.03262)."""
    return whiten(_rewards_to_go(rated, gamma=rated.gamma), rated.mask_BT)


def reinforce_plus_plus_baseline(rated: RatedResponses) -> Tensor:
    """Subtract the group's mean, then whiten over the step: REINFORCE++ with a baseline.

    arXiv 2501.03262.
    """
    return whiten(group_mean(rated)[:, None] * rated.mask_BT, rated.mask_BT)


def gae(rated: RatedResponses) -> Estimate:
    """Use a critic's values, and whiten over the step: PPO (arXiv 1707.06347)."""
    mask_BT, values_BT = rated.mask_BT, rated.values_BT
    assert values_BT is not None, "validated: the run has a critic"
    advantages_BT, returns_BT = gae_advantages(
        rated.token_rewards(), values_BT, mask_BT, gamma=rated.gamma, lam=rated.lam
    )
    metrics = {
        "value/mean": values_BT[mask_BT].mean().item(),
        "value/return_mean": returns_BT[mask_BT].mean().item(),
        "value/explained_variance": explained_variance(values_BT, returns_BT, mask_BT),
        "advantage/mean": advantages_BT[mask_BT].mean().item(),
        "advantage/std": advantages_BT[mask_BT].std(correction=0).item(),
    }
    whitened_BT = whiten(advantages_BT, mask_BT)
    return Estimate(advantages_BT=whitened_BT, returns_BT=returns_BT, metrics=metrics)


def teacher(rated: RatedResponses) -> Tensor:
    """Ignore the rewards: the advantages are those of `teacher_config` alone."""
    return torch.zeros_like(rated.rewards_B)


ESTIMATORS: Mapping[str, Estimator] = {name: globals()[name] for name in rl.ESTIMATORS}
"""Estimators by their names in `rl_config.adv_estimator`: each is the function of that name."""


def resolve_estimator(name: str) -> Estimator:
    """Return the named estimator, or your own function after a trial with four responses.

    Raises:
        ConfigError: It does not exist, or returns a wrong result.
    """
    estimator: Estimator = named_function(_FIELD, name, ESTIMATORS, "estimator")
    if name not in ESTIMATORS:
        mask_BT = torch.arange(5) >= torch.tensor([[1], [2], [3], [4]])
        tried = RatedResponses(
            rewards_B=torch.tensor([0.0, 1.0, 0.5, 0.5]),
            group_B=torch.tensor([0, 0, 1, 1]),
            mask_BT=mask_BT,
        )
        with trial(_FIELD, name, "four responses to two prompts"):
            estimated(estimator, tried)
    return estimator


def estimated(estimator: Estimator, rated: RatedResponses) -> Estimate:
    """Return the estimate; a number per response is assigned to each of its tokens.

    Raises:
        ValueError: The estimator returned a shape other than [B] or [B, T].
        TypeError: It returned no tensor.
    """
    found = estimator(rated)
    if isinstance(found, Estimate):
        return found
    if not isinstance(found, Tensor):
        raise TypeError(f"advantages are a {type(found).__name__}; need a tensor")
    shape, shapes = list(found.shape), ([len(rated.rewards_B)], [*rated.mask_BT.shape])
    if shape not in shapes:
        raise ValueError(f"advantages have shape {shape}; need {shapes[0]} or {shapes[1]}")
    spread_BT = found[:, None] * rated.mask_BT if found.ndim == 1 else found
    return Estimate(advantages_BT=spread_BT.masked_fill(~rated.mask_BT, 0.0))
