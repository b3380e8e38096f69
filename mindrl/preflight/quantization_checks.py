"""Checks of `generate_config.quantization`. Imports no torch."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken
from mindrl.config.run import RunConfig
from mindrl.models.description import ModelDescription

_KEY = "generate_config.quantization"
_LEVEL = "rl_config.rollout_correction.level"
_OLD = "rl_config.old_log_probs"


def quantization_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield settings that a run with a rounded engine needs or excludes."""
    rollout, rl = config.generate_config, config.rl_config
    if rollout.quantization is None:
        return
    asked = f"{_KEY}={rollout.quantization}"
    if rollout.is_served:
        need = ": servers choose it when they start; use null, or no servers"
        yield broken(_KEY, rollout.quantization, need, None)
    if rollout.batch_invariant:
        need = f"must be false with {asked}: the trainer has no such products"
        yield broken("generate_config.batch_invariant", True, need, False)
    if rl.rollout_correction.level == "off":
        need = f"must be token or sequence with {asked}, which changes probabilities"
        yield broken(_LEVEL, "off", need, "token", "sequence")
    if config.old_log_probs == "from_rollout":
        need = f"must be null or recompute with {asked}: the engine has no log-probs of the actor"
        yield broken(_OLD, rl.old_log_probs, need, None, "recompute")


def quantization_findings_on(config: RunConfig, actor: ModelDescription) -> Iterator[Finding]:
    """Yield that the actor's matrices cannot be rounded as they arrive."""
    asked = config.generate_config.quantization
    if asked is None:
        return
    if reason := _not_rounded(actor):
        yield broken(_KEY, asked, f"must be null: {reason}", None)


def _not_rounded(actor: ModelDescription) -> str:
    """Return why a model's matrices are not rounded; empty if they are."""
    reasons = {
        "mindrl rounds no experts of a mixture": actor.moe is not None,
        "the engine derives matrices of latent attention from rounded ones": actor.mla is not None,
        "mindrl rounds matrices of families that it shards itself, without gated delta nets": (
            actor.other is not None or actor.delta is not None
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
