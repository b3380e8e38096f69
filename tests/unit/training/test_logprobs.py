"""Chunked log-probs and entropies on one rank against torch's own over all logits.

The same over two ranks is in tests/distributed/test_logprobs.py. Without Megatron.

Shapes: N tokens, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.utils.flop_counter import FlopCounterMode

from mindrl.config.teacher import Candidates
from mindrl.training.logprobs import Vocabulary, chunked_logprobs, most_probable

N, H, V = 7, 5, 11
CHUNKS = [1, 3, N, 100]

Make = Callable[..., Vocabulary]


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[Make]:
    """A vocabulary in a process group of one, taken down again behind this file."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None

    def make(**changes: Any) -> Vocabulary:
        values = {"size": V, "first_token": 0, "temperature": 1.0, "chunk_tokens": 3}
        return Vocabulary(group=group, **(values | changes))

    yield make
    dist.destroy_process_group()


def example(
    count: int = N, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    hidden_NH = scale * torch.randn(count, H, dtype=torch.float64, generator=generator)
    weight_VH = torch.randn(V, H, dtype=torch.float64, generator=generator)
    targets_N = torch.randint(0, V, (count,), generator=generator)
    return hidden_NH.to(dtype), weight_VH.to(dtype), targets_N


def plain(
    hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    all_NV = torch.log_softmax(hidden_NH @ weight_VH.T / temperature, dim=-1)
    return all_NV.gather(1, targets_N[:, None])[:, 0], -(all_NV.exp() * all_NV).sum(-1)


def gradients(both: tuple[Tensor, Tensor], *leaves: Tensor) -> tuple[Tensor, ...]:
    """Go back through both results, with another weight on every token and on each result."""
    factors_2N = torch.linspace(-1.0, 2.0, 2 * len(both[0]), dtype=both[0].dtype).view(2, -1)
    return torch.autograd.grad(both, leaves, tuple(factors_2N))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_values_and_gradients_are_those_of_log_softmax_to_eleven_digits(
    chunk: int, temperature: float, vocabulary: Make
) -> None:
    hidden_NH, weight_VH, targets_N = example()
    leaves = (hidden_NH.requires_grad_(), weight_VH.requires_grad_())
    rules = vocabulary(chunk_tokens=chunk, temperature=temperature)
    found = chunked_logprobs(*leaves, targets_N, rules)
    expected = plain(*leaves, targets_N, temperature)
    compared = zip(
        (*found, *gradients(found, *leaves)),
        (*expected, *gradients(expected, *leaves)),
        strict=True,
    )
    for ours, torchs in compared:
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, torchs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_one_operator_gives_log_softmax_to_the_bit_and_the_same_gradients(
    chunk: int, vocabulary: Make
) -> None:
    hidden_NH, weight_VH, targets_N = example(40, torch.float32)
    leaves = (hidden_NH.requires_grad_(), weight_VH.requires_grad_())
    rules = vocabulary(chunk_tokens=chunk, temperature=0.7)
    usual = chunked_logprobs(*leaves, targets_N, rules)
    rules = vocabulary(chunk_tokens=chunk, temperature=0.7, one_operator=True)
    found = chunked_logprobs(*leaves, targets_N, rules)
    logits_NV = torch.cat([each @ weight_VH.T for each in hidden_NH.split(chunk)]) / 0.7
    expected_NV = logits_NV.log_softmax(dim=-1)
    assert torch.equal(found[0], expected_NV.gather(1, targets_N[:, None])[:, 0])
    assert not torch.equal(found[0], usual[0])
    for ours, same in zip(gradients(found, *leaves), gradients(usual, *leaves), strict=True):
        assert torch.equal(ours, same)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 20), chunk=st.integers(1, 25), scale=st.floats(0.0, 30.0))
def test_any_number_of_tokens_in_any_chunks_is_what_log_softmax_gives(
    vocabulary: Make, count: int, chunk: int, scale: float
) -> None:
    hidden_NH, weight_VH, targets_N = example(count, scale=scale)
    leaves = (hidden_NH.requires_grad_(), weight_VH.requires_grad_())
    found = chunked_logprobs(*leaves, targets_N, vocabulary(chunk_tokens=chunk))
    expected = plain(*leaves, targets_N)
    for ours, torchs in zip(
        (*found, *gradients(found, *leaves)),
        (*expected, *gradients(expected, *leaves)),
        strict=True,
    ):
        # Logits reach 300: their own rounding is 3e-14.
        torch.testing.assert_close(ours, torchs, rtol=1e-10, atol=1e-11)


def test_gradients_pass_torchs_finite_difference_check(vocabulary: Make) -> None:
    hidden_NH, weight_VH, targets_N = example()
    assert torch.autograd.gradcheck(
        lambda hidden, weight: chunked_logprobs(
            hidden, weight, targets_N, vocabulary(temperature=0.7)
        ),
        (hidden_NH.requires_grad_(), weight_VH.requires_grad_()),
    )


@pytest.mark.parametrize("one_operator", [False, True])
def test_several_targets_of_a_token_give_the_log_probs_and_gradients_of_log_softmax(
    vocabulary: Make, *, one_operator: bool
) -> None:
    hidden_NH, weight_VH, _ = example()
    leaves = (hidden_NH.requires_grad_(), weight_VH.requires_grad_())
    targets_NK = torch.rand(N, V, generator=torch.Generator().manual_seed(8)).argsort()[:, :3]
    targets_NK[0] = 4
    rules = vocabulary(temperature=0.7, one_operator=one_operator)
    logprobs_NK, entropy_N = chunked_logprobs(*leaves, targets_NK, rules)
    all_NV = torch.log_softmax(hidden_NH @ weight_VH.T / 0.7, dim=-1)
    expected_NK = all_NV.gather(1, targets_NK)
    torch.testing.assert_close(logprobs_NK, expected_NK, rtol=1e-11, atol=1e-12)
    factors_NK = torch.linspace(-1.0, 2.0, 3 * N, dtype=torch.float64).view(N, 3)
    found = torch.autograd.grad((logprobs_NK * factors_NK).sum() + entropy_N.sum(), leaves)
    entropy = -(all_NV.exp() * all_NV).sum()
    expected = torch.autograd.grad((expected_NK * factors_NK).sum() + entropy, leaves)
    for ours, torchs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("below", [V, 6])
def test_the_most_probable_tokens_come_in_falling_order_with_log_probs_of_all_tokens(
    below: int, vocabulary: Make
) -> None:
    hidden_NH, weight_VH, targets_N = example()
    rules = vocabulary(temperature=0.7)
    asked = Candidates(number=4, below=below)
    found = most_probable(hidden_NH, weight_VH, targets_N, rules, asked)
    all_NV = torch.log_softmax(hidden_NH @ weight_VH.T / 0.7, dim=-1)
    highest_NK, ids_NK = all_NV[:, :below].topk(4)
    assert torch.equal(found[2], ids_NK)
    torch.testing.assert_close(found[3], highest_NK, rtol=1e-11, atol=1e-12)
    for ours, torchs in zip(found[:2], plain(hidden_NH, weight_VH, targets_N, 0.7), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-11, atol=1e-12)


def test_the_gradient_has_no_gradient_of_its_own(vocabulary: Make) -> None:
    hidden_NH, weight_VH, targets_N = example()
    logprobs_N, _ = chunked_logprobs(hidden_NH.requires_grad_(), weight_VH, targets_N, vocabulary())
    (grad_NH,) = torch.autograd.grad(logprobs_N.square().sum(), hidden_NH, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad_NH.sum().backward()


@pytest.mark.parametrize("filling", [0.0, 1e30, torch.nan])
def test_rows_beyond_the_vocabulary_change_nothing_and_get_no_gradient(
    filling: float, vocabulary: Make
) -> None:
    hidden_NH, weight_VH, targets_N = example()
    # Memory that nobody wrote may hold anything; 0 times NaN would be NaN.
    padded_VH = torch.cat([weight_VH, torch.full((3, H), filling, dtype=torch.float64)])
    leaves = (hidden_NH.requires_grad_(), padded_VH.requires_grad_())
    found = chunked_logprobs(*leaves, targets_N, vocabulary())
    grad_NH, grad_VH = gradients(found, *leaves)

    weight_VH.requires_grad_()
    expected = plain(hidden_NH, weight_VH, targets_N)
    expected_grad_NH, expected_grad_VH = gradients(expected, hidden_NH, weight_VH)
    for ours, torchs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad_NH, expected_grad_NH, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(grad_VH[:V], expected_grad_VH, rtol=1e-11, atol=1e-12)
    assert grad_VH.shape == (V + 3, H)
    assert not grad_VH[V:].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_logits_of_ten_thousand_overflow_nothing(dtype: torch.dtype, vocabulary: Make) -> None:
    hidden_NH = torch.tensor([[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4]], dtype=dtype)
    leaves = (hidden_NH.requires_grad_(), torch.eye(3, dtype=dtype).requires_grad_())
    both = chunked_logprobs(*leaves, torch.tensor([0, 2]), vocabulary(size=3))
    # Certain of the first; equally unsure between three, so ln 3. In bfloat16 9984, all the same.
    # Eight digits of 1e4 leave four behind the point: 1e4 is subtracted before anything is added.
    tolerance = 1e-15 if dtype is torch.float64 else 1e-7
    assert both[0].tolist() == pytest.approx([0.0, -1.0986122886681098], abs=tolerance)
    assert both[1].tolist() == pytest.approx([0.0, 1.0986122886681098], abs=tolerance)
    for grad in gradients(both, *leaves):
        assert torch.isfinite(grad).all()


def test_a_token_of_no_probability_has_its_log_prob_and_a_gradient_of_one(
    vocabulary: Make,
) -> None:
    hidden_NH = torch.tensor([[2e4, 0.0]], requires_grad=True)
    logprobs_N, entropy_N = chunked_logprobs(
        hidden_NH, torch.eye(2), torch.tensor([1]), vocabulary(size=2)
    )
    assert (logprobs_N.item(), entropy_N.item()) == (-2e4, 0.0)
    (grad_NH,) = torch.autograd.grad(logprobs_N.sum(), hidden_NH)
    assert grad_NH.tolist() == [[-1.0, 1.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_logits_give_the_log_of_the_vocabulary_twice_over(
    dtype: torch.dtype, vocabulary: Make
) -> None:
    hidden_NH = torch.full((4, H), 3.0, dtype=dtype, requires_grad=True)
    weight_VH = torch.full((V, H), 0.5, dtype=dtype, requires_grad=True)
    both = chunked_logprobs(hidden_NH, weight_VH, torch.arange(4), vocabulary())
    # ln 11, in float32.
    assert both[0].tolist() == pytest.approx([-2.3978953] * 4, abs=1e-6)
    assert both[1].tolist() == pytest.approx([2.3978953] * 4, abs=1e-6)
    # At its maximum the entropy has no slope; a product of zero with anything is zero.
    grad_NH, grad_VH = torch.autograd.grad(both[1].sum(), (hidden_NH, weight_VH))
    assert grad_NH.abs().max() < 1e-6
    assert grad_VH.abs().max() < 1e-6


def test_no_token_at_all_is_an_empty_result_and_no_gradient(vocabulary: Make) -> None:
    hidden_NH = torch.zeros(0, H, requires_grad=True)
    weight_VH = torch.ones(V, H, requires_grad=True)
    both = chunked_logprobs(hidden_NH, weight_VH, torch.zeros(0, dtype=torch.int64), vocabulary())
    assert both[0].shape == both[1].shape == (0,)
    grad_NH, grad_VH = gradients(both, hidden_NH, weight_VH)
    assert grad_NH.shape == (0, H)
    assert not grad_VH.any()


def test_the_inputs_are_left_as_they_were_and_the_results_can_be_changed(vocabulary: Make) -> None:
    hidden_NH, weight_VH, targets_N = example()
    before = [tensor.clone() for tensor in (hidden_NH, weight_VH, targets_N)]
    leaves = (hidden_NH.requires_grad_(), weight_VH.requires_grad_())
    expected = gradients(chunked_logprobs(*leaves, targets_N, vocabulary()), *leaves)
    logprobs_N, entropy_N = chunked_logprobs(*leaves, targets_N, vocabulary())
    found = gradients((logprobs_N.mul_(1.0), entropy_N.mul_(1.0)), *leaves)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
    for tensor, old in zip((hidden_NH, weight_VH, targets_N), before, strict=True):
        assert torch.equal(tensor.detach(), old)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_gradient_is_added_to_main_grad_and_nowhere_else(
    dtype: torch.dtype, vocabulary: Make
) -> None:
    hidden_NH, weight_VH, targets_N = example(dtype=dtype)
    twin_VH = weight_VH.clone().requires_grad_()
    weight_VH.requires_grad_()
    weight_VH.main_grad = torch.full((V, H), 8.0)  # type: ignore[attr-defined]
    for weight in (weight_VH, twin_VH):
        both = chunked_logprobs(hidden_NH, weight, targets_N, vocabulary())
        (both[0].sum() - both[1].sum()).backward()
    assert weight_VH.grad is None
    assert twin_VH.grad is not None
    assert twin_VH.grad.dtype == dtype
    added_VH = weight_VH.main_grad - 8.0  # type: ignore[attr-defined]
    # The buffer is float32 and holds 8, so half a unit in its last place is 5e-7; the gradient of
    # the twin is rounded to the weight's type at last, eight binary digits of bfloat16.
    rtol = 2**-8 if dtype is torch.bfloat16 else 0.0
    torch.testing.assert_close(added_VH, twin_VH.grad.float(), rtol=rtol, atol=2e-6)


def test_a_frozen_weight_costs_no_gradient_and_changes_no_other(vocabulary: Make) -> None:
    hidden_NH, weight_VH, targets_N = example(dtype=torch.bfloat16)
    found, products = [], []
    for is_trained in (True, False):
        leaf_NH = hidden_NH.clone().requires_grad_()
        both = chunked_logprobs(
            leaf_NH, weight_VH.requires_grad_(is_trained), targets_N, vocabulary()
        )
        with FlopCounterMode(display=False) as counter:
            (both[0].sum() - both[1].sum()).backward()
        assert leaf_NH.grad is not None
        found.append(leaf_NH.grad)
        products.append(counter.get_total_flops() / (2 * N * V * H))
    assert torch.equal(*found)
    # Logits again, gradient of the hidden states, and gradient of the weight if it is trained.
    assert products == [3, 2]


def test_hidden_states_that_are_wider_than_the_weight_get_a_gradient_of_their_own_type(
    vocabulary: Make,
) -> None:
    hidden_NH, weight_VH, targets_N = example(dtype=torch.bfloat16)
    wide_NH = hidden_NH.float().requires_grad_()
    narrow_NH = hidden_NH.requires_grad_()
    for leaf in (wide_NH, narrow_NH):
        chunked_logprobs(leaf, weight_VH, targets_N, vocabulary())[0].sum().backward()
    assert wide_NH.grad is not None
    assert narrow_NH.grad is not None
    assert wide_NH.grad.dtype == torch.float32
    assert torch.equal(wide_NH.grad, narrow_NH.grad.float())


@pytest.mark.parametrize("chunk", CHUNKS)
def test_bfloat16_in_chunks_is_near_the_plain_sum_in_float32(chunk: int, vocabulary: Make) -> None:
    hidden_NH, weight_VH, targets_N = example(dtype=torch.bfloat16)
    leaves = (hidden_NH.requires_grad_(), weight_VH.requires_grad_())
    wide = tuple(leaf.detach().float().requires_grad_() for leaf in leaves)
    found = chunked_logprobs(*leaves, targets_N, vocabulary(chunk_tokens=chunk))
    expected = plain(*wide, targets_N)
    assert (wide[0] @ wide[1].T).abs().max().item() == pytest.approx(8.0, abs=0.01)
    for ours, torchs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        # A logit of 4 to 8 is rounded to 8 binary digits, so it is off by up to 2**-6 = 0.016;
        # a log-prob by twice as much, an entropy by a little more.
        torch.testing.assert_close(ours, torchs, rtol=0.0, atol=0.04)
    for ours, torchs in zip(gradients(found, *leaves), gradients(expected, *wide), strict=True):
        assert ours.dtype == torch.bfloat16
        # Sums of up to 11 products, each off by 1 % as above; gradients reach 3.
        torch.testing.assert_close(ours.float(), torchs, rtol=0.02, atol=0.05)
