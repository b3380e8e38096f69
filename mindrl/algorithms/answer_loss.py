"""The loss of supervised fine-tuning."""

from mindrl.algorithms.losses import LossInputs, LossTerms, weighted_sums
from mindrl.batch.experience import WeightedSequences

ANSWER_LOSS = "answer_loss"
"""Name of the loss among the metrics."""


def answer_loss(inputs: LossInputs[WeightedSequences]) -> LossTerms:
    """Return the mean negative log-prob of the target tokens, in nats, and their mean entropy."""
    logprobs_BT, entropy_BT = inputs.outputs
    terms_BT = {
        ANSWER_LOSS: -inputs.used("logprobs_BT", logprobs_BT),
        "entropy": inputs.used("entropy_BT", entropy_BT),
    }
    sums = weighted_sums(terms_BT, inputs.weights_BT)
    return LossTerms.of(sums[ANSWER_LOSS], sums)
