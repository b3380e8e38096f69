"""Rules for what an algorithm needs of a run. Imports no torch."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken
from mindrl.config.run import RunConfig

_OLD = "rl_config.old_log_probs"


def algorithm_findings(config: RunConfig) -> Iterator[Finding]:
    """Say what keeps the parts of the algorithm from going together."""
    yield from _old_log_probs(config)


def _old_log_probs(config: RunConfig) -> Iterator[Finding]:
    """An update finds the log-probs it starts from where nothing needs them sooner, or later."""
    rl, early = config.rl_config, config.needs_log_prob_pass
    asked, warmup = rl.old_log_probs, rl.critic_warmup
    legal = (None, "recompute")
    if asked == "from_update" and early:
        need = "needs steps of one update that all train the actor, and nothing that reads them"
        yield broken(_OLD, asked, f"{need} before; found {early}", *legal)
    if asked == "from_rollout" and warmup:
        need = f"needs an update in each step; rl_config.critic_warmup={warmup} has steps without"
        yield broken(_OLD, asked, need, *legal)
