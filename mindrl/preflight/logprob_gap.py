"""How far the log-probs of the rollout engine may lie from the trainer's."""

from mindrl.config.run import RunConfig

_FLOAT32 = 0.01
_BF16 = 0.1
_BF16_EXPERTS = 0.3
"""Some tokens go to other experts on the two sides: healthy runs show 0.02 to 0.06."""


def logprob_gap_limit(config: RunConfig, *, has_experts: bool) -> float | None:
    """Return the limit of a run in nats; None where no gap is judged."""
    asked = config.rl_config.max_logprob_gap
    if asked is not None:
        return asked
    if config.generate_config.sampling_config.cuts:
        # The engine's log-probs are those of a part of the distribution, the trainer's are not.
        return None
    if not config.megatron_training.bf16 and config.generate_config.dtype == "float32":
        return _FLOAT32
    return _BF16_EXPERTS if has_experts else _BF16


def logprob_gap_text(config: RunConfig) -> str:
    """Say how a run is judged, whatever its model."""
    dense, experts = (logprob_gap_limit(config, has_experts=each) for each in (False, True))
    if dense is None:
        cuts = config.generate_config.sampling_config.cuts
        return f"not judged: {cuts} (rl_config.max_logprob_gap sets a limit)"
    mixture = "" if experts == dense else f" ({experts:g} with experts)"
    steps = config.rl_config.logprob_gap_steps
    return f"warns beyond {dense:g} nats{mixture}, ends after {steps} steps"
