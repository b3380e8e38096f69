"""Log-probs and entropies on one rank against torch's own, in float64.

The same over two ranks is in tests/distributed/test_logprobs.py.
"""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from mindrl.training.logprobs import vocab_parallel_logprobs

TOKENS, VOCABULARY = 7, 11


@pytest.fixture(scope="module")
def alone() -> Iterator[dist.ProcessGroup]:
    """A process group of one, taken down again behind this file."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None
    yield group
    dist.destroy_process_group()


def example(scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    logits_NV = scale * torch.randn(TOKENS, VOCABULARY, dtype=torch.float64, generator=generator)
    targets_N = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    return logits_NV, targets_N


def plain(logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    all_NV = torch.log_softmax(logits_NV, dim=-1)
    return all_NV.gather(1, targets_N[:, None])[:, 0], -(all_NV.exp() * all_NV).sum(-1)


def test_values_are_those_of_log_softmax_to_twelve_digits(alone: dist.ProcessGroup) -> None:
    logits_NV, targets_N = example()
    found = vocab_parallel_logprobs(logits_NV, targets_N, first_token=0, group=alone)
    for result, expected in zip(found, plain(logits_NV, targets_N), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("grad_entropy", [0.0, 1.0, -2.5])
def test_gradients_through_logprob_and_entropy_are_those_of_log_softmax(
    grad_entropy: float, alone: dist.ProcessGroup
) -> None:
    logits_NV, targets_N = example()
    weight_N = torch.linspace(-1, 1, TOKENS, dtype=torch.float64)
    grads: list[Tensor] = []
    for ours in (True, False):
        leaf_NV = logits_NV.clone().requires_grad_()
        logprobs_N, entropy_N = (
            vocab_parallel_logprobs(leaf_NV, targets_N, first_token=0, group=alone)
            if ours
            else plain(leaf_NV, targets_N)
        )
        loss = (weight_N * logprobs_N).sum() + grad_entropy * (weight_N * entropy_N).sum()
        grads += torch.autograd.grad(loss, leaf_NV)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-11, atol=1e-12)


def test_gradients_pass_torchs_finite_difference_check(alone: dist.ProcessGroup) -> None:
    logits_NV, targets_N = example(scale=1.0)
    assert torch.autograd.gradcheck(
        lambda leaf_NV: vocab_parallel_logprobs(leaf_NV, targets_N, first_token=0, group=alone),
        (logits_NV.requires_grad_(),),
    )


def test_padding_logits_change_no_value_and_get_no_gradient(alone: dist.ProcessGroup) -> None:
    logits_NV, targets_N = example()
    padded_NV = torch.nn.functional.pad(logits_NV, (0, 3), value=-1e30).requires_grad_()
    logprobs_N, entropy_N = vocab_parallel_logprobs(
        padded_NV, targets_N, first_token=0, group=alone
    )
    expected_logprobs_N, expected_entropy_N = plain(logits_NV, targets_N)
    torch.testing.assert_close(logprobs_N, expected_logprobs_N, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy_N, expected_entropy_N, rtol=1e-12, atol=1e-12)
    (grad_NV,) = torch.autograd.grad((logprobs_N + entropy_N).sum(), padded_NV)
    assert torch.isfinite(grad_NV).all()
    assert not grad_NV[:, VOCABULARY:].any()


def test_logits_of_ten_thousand_overflow_nothing(alone: dist.ProcessGroup) -> None:
    logits_NV = torch.tensor([[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4]], dtype=torch.float64)
    logits_NV.requires_grad_()
    logprobs_N, entropy_N = vocab_parallel_logprobs(
        logits_NV, torch.tensor([0, 2]), first_token=0, group=alone
    )
    # Certain of the first; equally unsure between three.
    assert logprobs_N.tolist() == pytest.approx([0.0, -1.0986122886681098], abs=1e-15)
    assert entropy_N.tolist() == pytest.approx([0.0, 1.0986122886681098], abs=1e-15)
    (grad_NV,) = torch.autograd.grad((logprobs_N + entropy_N).sum(), logits_NV)
    assert torch.isfinite(grad_NV).all()


def test_the_logits_are_left_as_they_were(alone: dist.ProcessGroup) -> None:
    logits_NV, targets_N = example()
    before_NV = logits_NV.clone()
    vocab_parallel_logprobs(logits_NV, targets_N, first_token=0, group=alone)
    assert torch.equal(logits_NV, before_NV)


def test_no_token_at_all_is_an_empty_result(alone: dist.ProcessGroup) -> None:
    logprobs_N, entropy_N = vocab_parallel_logprobs(
        torch.zeros(0, VOCABULARY), torch.zeros(0, dtype=torch.int64), first_token=0, group=alone
    )
    assert logprobs_N.shape == entropy_N.shape == (0,)
