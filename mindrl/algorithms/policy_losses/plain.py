"""The policy gradient."""

from mindrl.algorithms.chosen_tokens import ChosenTokens, Terms


def plain(chosen: ChosenTokens) -> Terms:
    """-A * log-prob: REINFORCE, whichever policy sampled the tokens."""
    return {
        "policy_loss": -chosen.advantages_BT * chosen.logprobs_BT,
        "ratio": chosen.ratio().detach(),
    }
