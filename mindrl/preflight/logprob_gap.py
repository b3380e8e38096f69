"""How far the log-probs of the rollout engine may lie from the trainer's."""

from mindrl.config.run import RunConfig

_FLOAT32 = 0.01
_BF16 = 0.1
_BF16_EXPERTS = 0.3
"""Some tokens go to other experts on the two sides: healthy runs show 0.02 to 0.06."""


def cut_distribution(config: RunConfig) -> str:
    """Return the keys by which the engine draws from a part of the distribution; empty for none.

    Its log-probs are those of that part, and the trainer's are not: no gap says what is wrong.
    """
    sampling = config.generate_config.sampling_config
    cuts = {
        f"top_p={sampling.top_p:g}": sampling.top_p < 1,
        f"top_k={sampling.top_k}": sampling.top_k > 0,
        f"min_p={sampling.min_p:g}": sampling.min_p > 0,
    }
    return ", ".join(name for name, is_cut in cuts.items() if is_cut)


def logprob_gap_limit(config: RunConfig, *, has_experts: bool) -> float | None:
    """Return the limit of a run in nats; None where no gap is judged."""
    asked = config.rl_config.max_logprob_gap
    if asked is not None:
        return asked
    if cut_distribution(config):
        return None
    if not config.megatron_training.bf16 and config.generate_config.dtype == "float32":
        return _FLOAT32
    return _BF16_EXPERTS if has_experts else _BF16


def logprob_gap_text(config: RunConfig) -> str:
    """Say how a run is judged, whatever its model."""
    dense, experts = (logprob_gap_limit(config, has_experts=each) for each in (False, True))
    if dense is None:
        return f"not judged: {cut_distribution(config)} (rl_config.max_logprob_gap sets a limit)"
    mixture = "" if experts == dense else f" ({experts:g} with experts)"
    steps = config.rl_config.logprob_gap_steps
    return f"warns beyond {dense:g} nats{mixture}, ends after {steps} steps"
