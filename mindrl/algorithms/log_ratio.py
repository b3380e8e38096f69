"""Ratios of probabilities, whose exponential must neither overflow nor lose a gradient to NaN.

Shapes: B sequences, T positions.
"""

from torch import Tensor

MAX_LOG_RATIO = 20.0
"""In nats, as in MindSpeed-RL and verl: e^20 is 5e8, and float32 ends at e^88."""


def log_ratio(logprobs_BT: Tensor, other_logprobs_BT: Tensor) -> Tensor:
    """Return log(p / other p) of each token, within +-`MAX_LOG_RATIO`.

    A token beyond the bound has no gradient. Without it exp would give inf, and the backward pass
    0 * inf = NaN, even for a token whose ratio is clipped afterwards and has no gradient at all.
    """
    return (logprobs_BT - other_logprobs_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
