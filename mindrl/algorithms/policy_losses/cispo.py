"""The clipped ratio as a weight."""

from mindrl.algorithms.chosen_tokens import ChosenTokens, Terms
from mindrl.algorithms.policy_losses.clipped import ClipOptions


def cispo(chosen: ChosenTokens, options: ClipOptions) -> Terms:
    """-sg(clip(ratio)) * A * log-prob: no token loses its gradient. CISPO (arXiv 2506.13585)."""
    ratio_BT = chosen.ratio().detach()
    weight_BT = options.clipped(ratio_BT)
    return {
        "policy_loss": -weight_BT * chosen.advantages_BT * chosen.logprobs_BT,
        "clip_fraction": weight_BT != ratio_BT,
        "ratio": ratio_BT,
    }
