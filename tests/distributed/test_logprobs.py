"""Log-probs over a vocabulary that two ranks share, against torch on the whole of it."""

import pytest
import torch
from forked_workers import ForkedWorkers
from torch import Tensor

pytestmark = pytest.mark.distributed

TOKENS, VOCABULARY, PADDING = 9, 11, 1


def test_two_halves_of_a_vocabulary_give_values_and_gradients_of_the_whole(
    forked_workers: ForkedWorkers,
) -> None:
    generator = torch.Generator().manual_seed(6)
    logits_NV = 3 * torch.randn(TOKENS, VOCABULARY, dtype=torch.float64, generator=generator)
    targets_N = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    # On either side of the cut, and next to the padding.
    targets_N[:4] = torch.tensor([0, 5, 6, 10])
    grads_2N = torch.randn(2, TOKENS, dtype=torch.float64, generator=generator)
    padded_NV = torch.nn.functional.pad(logits_NV, (0, PADDING), value=-1e30)

    replies: list[tuple[Tensor, Tensor, Tensor]] = forked_workers.run(
        "training_probe:logprobs_over_ranks", padded_NV, targets_N, grads_2N, ranks=2
    )

    leaf_NV = logits_NV.clone().requires_grad_()
    all_NV = torch.log_softmax(leaf_NV, dim=-1)
    logprobs_N = all_NV.gather(1, targets_N[:, None])[:, 0]
    entropy_N = -(all_NV.exp() * all_NV).sum(-1)
    (grad_NV,) = torch.autograd.grad((logprobs_N, entropy_N), leaf_NV, tuple(grads_2N))
    for found_logprobs_N, found_entropy_N, _ in replies:
        torch.testing.assert_close(found_logprobs_N, logprobs_N.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found_entropy_N, entropy_N.detach(), rtol=1e-12, atol=1e-12)
    found_grad_NV = torch.cat([grad for _, _, grad in replies], dim=1)
    torch.testing.assert_close(found_grad_NV[:, :VOCABULARY], grad_NV, rtol=1e-11, atol=1e-12)
    assert not found_grad_NV[:, VOCABULARY:].any()
