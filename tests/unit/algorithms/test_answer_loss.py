"""The loss of supervised fine-tuning, by hand and against torch's cross entropy."""

import math

import torch

from mindrl.algorithms.answer_loss import ANSWER_LOSS, answer_loss
from mindrl.algorithms.losses import LossInputs
from mindrl.algorithms.token_weights import token_mean_weights
from mindrl.batch.experience import WeightedSequences


def test_the_loss_and_its_gradient_are_those_of_cross_entropy_over_the_target_tokens() -> None:
    """Three sequences of 5 tokens over a vocabulary of 7; prompts have NaN."""
    generator = torch.Generator().manual_seed(0)
    logits_BTV = torch.randn(3, 5, 7, dtype=torch.float64, generator=generator).requires_grad_()
    tokens_BT = torch.randint(0, 7, (3, 5), generator=generator)
    targets_BT = torch.arange(5) >= torch.tensor([[1], [4], [3]])
    logprobs_BTV = logits_BTV.log_softmax(dim=-1)
    logprobs_BT = logprobs_BTV.gather(2, tokens_BT[..., None])[..., 0]
    entropy_BT = -(logprobs_BTV.exp() * logprobs_BTV).sum(dim=-1).detach()
    batch = WeightedSequences(
        tokens_BT=tokens_BT,
        lengths_B=torch.full((3,), 5),
        response_mask_BT=targets_BT,
        token_weights_BT=token_mean_weights(targets_BT),
    )
    outputs = tuple(each.masked_fill(~targets_BT, math.nan) for each in (logprobs_BT, entropy_BT))
    terms = answer_loss(LossInputs.of(outputs, batch, torch.ones(3, 5)))
    expected = torch.nn.functional.cross_entropy(logits_BTV[targets_BT], tokens_BT[targets_BT])
    # Weights are float32.
    torch.testing.assert_close(terms.loss, expected, rtol=1e-6, atol=0)
    (ours_BTV,), (theirs_BTV,) = (
        torch.autograd.grad(each, logits_BTV, retain_graph=True) for each in (terms.loss, expected)
    )
    torch.testing.assert_close(ours_BTV, theirs_BTV, rtol=1e-6, atol=1e-9)
    assert terms.metrics[ANSWER_LOSS].item() == terms.loss.item()
    mean = entropy_BT[targets_BT].mean()
    torch.testing.assert_close(terms.metrics["entropy"], mean, rtol=1e-6, atol=0)
