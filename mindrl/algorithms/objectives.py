"""What a run optimises: the advantages it needs and the loss of each trained model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindrl.algorithms.answer_loss import answer_loss
from mindrl.algorithms.chosen_tokens import TokenSelection
from mindrl.algorithms.divergence import TaughtLoss
from mindrl.algorithms.losses import Loss
from mindrl.algorithms.policy_loss import PolicyLoss
from mindrl.algorithms.preference_losses import sloped_loss
from mindrl.algorithms.token_loss import resolve_token_loss
from mindrl.algorithms.value_loss import ValueLoss
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig


@dataclass(frozen=True, kw_only=True)
class Objective:
    """An advantage estimator, and the losses of the trained models."""

    losses: Mapping[Role, Loss[Any]]
    """Of each trained role."""
    estimator: str | None = None
    """Name of the advantage estimator, which the driver resolves. None without advantages."""
    selection: TokenSelection | None = None
    """Selects tokens of each update of the actor. None if the loss selects none."""
    keeps_logprobs: bool = False
    """Whether updates of the actor return the log-probs from before the step."""


def objective_of(config: RunConfig) -> Objective:
    """Return the objective of a run.

    Raises:
        ConfigError: The user's own loss does not exist, or returns a wrong result.
    """
    if config.preference_config is not None:
        return Objective(losses={"actor": sloped_loss})
    return policy_objective(config) if config.sft_config is None else answer_objective(config)


def policy_objective(config: RunConfig) -> Objective:
    """Train a policy on the advantages of its responses, and a critic if the run has one."""
    rl, tokens = config.rl_config, resolve_token_loss(config.rl_config)
    policy = PolicyLoss(
        tokens=tokens,
        kl_kind=rl.kl_kind,
        kl_coef=config.loss_kl_coef,
        entropy_coef=rl.entropy_coeff,
        correction=config.rollout_correction,
    )
    losses: dict[Role, Loss[Any]] = {"actor": _taught(config, policy)}
    if config.critic_config is not None:
        losses["critic"] = ValueLoss(clip_range=rl.cliprange_value)
    return Objective(
        losses=losses,
        estimator=rl.adv_estimator,
        selection=tokens.selection,
        keeps_logprobs=config.old_log_probs != "recompute",
    )


def answer_objective(config: RunConfig) -> Objective:
    """Train on the answers of the rows, and on a teacher's distributions if the run has one."""
    return Objective(losses={"actor": _taught(config, answer_loss)})


def _taught(config: RunConfig, loss: Loss[Any]) -> Loss[Any]:
    """Add the divergence from a teacher, unless the run has none or uses it in advantages."""
    teacher = config.teacher_config
    if teacher is None or not teacher.candidates:
        return loss
    own = 1.0 if config.sft_config is None else config.sft_config.answer_coef
    return TaughtLoss(own=loss, own_coef=own, form=teacher.divergence, coef=teacher.divergence_coef)
