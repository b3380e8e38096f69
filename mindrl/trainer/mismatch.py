"""How far the engine that draws tokens and the trainer are from one another.

Shapes: B sequences, T positions, N response tokens.
"""

from torch import Tensor

from mindrl.batch.rollouts import Rollouts
from mindrl.observability.metrics import Metrics
from mindrl.trainer.step_checks import UNKNOWN_GAPS


def logprob_gap(rollouts: Rollouts, logprobs_BT: Tensor) -> Metrics:
    """Measure it where both are finite, and count where they are not."""
    gap_N = (rollouts.rollout_logprobs_BT - logprobs_BT)[rollouts.response_mask_BT].abs()
    known_N = gap_N[gap_N.isfinite()]
    unknown = len(gap_N) - len(known_N)
    metrics = {UNKNOWN_GAPS: float(unknown)} if unknown else {}
    if len(known_N):
        metrics |= {"logprob_gap/mean": known_N.mean().item()}
        metrics |= {"logprob_gap/max": known_N.max().item()}
    return metrics
