"""A soft gate in place of a clipped ratio."""

from dataclasses import dataclass

import torch

from mindrl.algorithms.chosen_tokens import ChosenTokens, Terms


@dataclass(frozen=True, kw_only=True, slots=True)
class SapoOptions:
    """Steepness of the gate."""

    sapo_tau_positive: float
    """For positive advantages."""
    sapo_tau_negative: float
    """For negative advantages."""


def sapo(chosen: ChosenTokens, options: SapoOptions) -> Terms:
    """-4 / tau * sigmoid(tau * (ratio - 1)) * A: SAPO (arXiv 2511.20347)."""
    gain_BT, ratio_BT = chosen.advantages_BT, chosen.ratio()
    tau_BT = torch.full_like(gain_BT, options.sapo_tau_negative)
    tau_BT = tau_BT.masked_fill(gain_BT > 0, options.sapo_tau_positive)
    gate_BT = (tau_BT * (ratio_BT - 1)).sigmoid() * 4 / tau_BT
    return {"policy_loss": -gate_BT * gain_BT, "ratio": ratio_BT}
