"""Whether sequences that begin alike share that computation in training, and what that saves."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig

_KEY = "rl_config.share_prompts"
_LEAST_SAVING = 1.2


def saved_tokens(config: RunConfig) -> float:
    """Return how many times fewer tokens a training pass has, for the longest prompts and answers.

    G samples of a prompt with P and R tokens have P + G * R instead of G * (P + R). With a rendered
    history each of N turns is taken to write R / N tokens, which later prompts repeat: all but the
    last turn's are there twice instead of once for each later turn.
    """
    rl, environment, turns = config.rl_config, config.environment_config, 1
    if environment is not None and environment.history == "rendered":
        turns = environment.max_turns
    prompt, answer = rl.max_prompt_length, config.generate_config.sampling_config.max_tokens
    samples = rl.n_samples_per_prompt
    whole = samples * (turns * prompt + answer * (turns + 1) / 2)
    return whole / (prompt + samples * answer * (2 - 1 / turns))


def asks_for_shared_prompts(config: RunConfig, role: Role) -> bool:
    """Return whether a role is to share prompts: as configured, else if it pays."""
    # A reward model reads only the end of a sequence, so no token of it predicts a response.
    if role == "reward" or why_not(config, role):
        return False
    asked = config.rl_config.share_prompts
    return saved_tokens(config) >= _LEAST_SAVING if asked is None else asked


def why_not(config: RunConfig, role: Role) -> str:
    """Return why a role cannot share prompts; empty if it can."""
    layout, learning = config.layout(role), config.learning(role)
    reasons = {
        f"the context-parallel ranks of {role}_config pass keys on in a ring; "
        "context_parallel_algo=ulysses_cp_algo shares prompts": layout.ring > 1,
        "rl_config.use_remove_padding=false": not config.rl_config.use_remove_padding,
        "generate_config.batch_invariant=true": config.generate_config.batch_invariant,
        f"{role}_config.moe_router_load_balancing_type=seq_aux_loss balances whole sequences": (
            learning.moe_aux_loss_coeff > 0
            and learning.moe_router_load_balancing_type == "seq_aux_loss"
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def shared_prompt_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield that prompts are to be shared where they cannot be."""
    if config.rl_config.share_prompts and (reason := why_not(config, "actor")):
        yield broken(_KEY, True, f"cannot be used: {reason}", False, None)
