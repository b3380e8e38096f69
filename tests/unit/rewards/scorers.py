"""Scorers of a few functions."""

from collections.abc import Sequence

from mindrl.config.rl import RLConfig
from mindrl.rewards.scorer import RewardScorer


def scorer_of(
    functions: Sequence[str], weights: Sequence[float], timeout_seconds: float, processes: int
) -> RewardScorer:
    """Make a scorer without the other keys of its section."""
    return RewardScorer(
        RLConfig(
            mini_batch_size=1,
            verifier_function=tuple(functions),
            verifier_weight=tuple(weights),
            verifier_timeout=timeout_seconds,
            verifier_parallel=processes,
        )
    )
