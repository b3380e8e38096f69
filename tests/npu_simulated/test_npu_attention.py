"""The fused attention of the device, by torch_npu's own schema and gradient, and random numbers.

Shapes: T packed tokens, N heads of queries, M of keys, D their width.
"""

import pytest
import torch
from simulated import SimulatedNpus
from torch import Tensor

pytestmark = pytest.mark.npu_simulated

STARTS = (0, 5, 6, 17, 40)


def heads(N: int, M: int, D: int, width_of_values: int) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = (N, D), (M, D), (M, width_of_values), (N, width_of_values)
    *made, gradient = (torch.randn(STARTS[-1], *shape, generator=generator) for shape in shapes)
    return made, gradient


# Plain, grouped, and heads of values of another width.
@pytest.mark.parametrize("sizes", [(4, 4, 16, 16), (8, 2, 16, 16), (4, 4, 24, 16)])
def test_attention_and_its_gradients_are_torchs_within_float32_rounding(
    sizes: tuple[int, int, int, int], simulated_npus: SimulatedNpus
) -> None:
    ((host, device),) = simulated_npus.run("attention_probe:attended", STARTS, *heads(*sizes))
    assert [tensor.shape for tensor in host] == [tensor.shape for tensor in device]
    for ours, theirs in zip(host, device, strict=True):
        # Sums of up to 23 products of size 4, in another order.
        torch.testing.assert_close(ours, theirs, atol=5e-6, rtol=0)


@pytest.mark.parametrize(
    ("queries", "keys", "is_causal"),
    [
        (STARTS, STARTS, True),
        # Half of the keys, and half of the queries.
        ((0, 4, 6, 18), (0, 2, 3, 9), False),
        ((0, 2, 3, 9), (0, 4, 6, 18), False),
    ],
)
def test_blocks_of_keys_and_their_gradients_are_torchs_within_float32_rounding(
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    is_causal: bool,
    simulated_npus: SimulatedNpus,
) -> None:
    generator = torch.Generator().manual_seed(5)
    Q, K = queries[-1], keys[-1]
    shapes = (Q, 4, 16), (K, 2, 16), (K, 2, 12), (Q, 4, 12), (Q, 4, 12)
    *heads, mixed, gradient = (torch.randn(*shape, generator=generator) for shape in shapes)
    # Scores of size 1: the keys of other blocks have twice the weight of 20 such ones.
    joined = [mixed, torch.full((Q, 4), 4.0)]
    asked = (queries, keys), is_causal, heads, joined, gradient
    ((host, device),) = simulated_npus.run("attention_probe:blocks", *asked)
    assert [tensor.shape for tensor in host] == [tensor.shape for tensor in device]
    for ours, theirs in zip(host, device, strict=True):
        # Sums of up to 23 products of size 4, in another order.
        torch.testing.assert_close(ours, theirs, atol=5e-6, rtol=0)


def test_the_fused_norm_and_its_gradients_are_torchs_within_float32_rounding(
    simulated_npus: SimulatedNpus,
) -> None:
    generator = torch.Generator().manual_seed(7)
    hidden, gradient = (torch.randn(5, 1, 24, generator=generator) for _ in range(2))
    weight = 1 + 0.1 * torch.randn(24, generator=generator)
    # An epsilon of the size of the numbers, which a kernel without it would show.
    asked = hidden, weight, gradient, 0.5
    ((host, device),) = simulated_npus.run("attention_probe:normed", *asked)
    for ours, theirs in zip(host, device, strict=True):
        # Sums of 24 products of size 1, in another order.
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)


def test_a_width_that_the_kernel_refuses_by_its_documents_is_refused(
    simulated_npus: SimulatedNpus,
) -> None:
    *made, gradient = (tensor.repeat(1, 1, 49) for tensor in flat(heads(4, 4, 16, 16)))
    (reason,) = simulated_npus.run("attention_probe:refusal", STARTS, made, gradient)
    assert "head width 784 above 768" in reason


def test_more_sequences_than_a_call_takes_are_attended_in_several(
    simulated_npus: SimulatedNpus,
) -> None:
    """A call takes 1024; one of these has two tokens."""
    *made, gradient = (tensor.repeat(30, 1, 1) for tensor in flat(heads(4, 2, 16, 16)))
    starts = [*range(1100), 1101, *range(1102, len(gradient) + 1)]
    ((host, device),) = simulated_npus.run("attention_probe:attended", starts, made, gradient)
    for ours, theirs in zip(host, device, strict=True):
        torch.testing.assert_close(ours, theirs, atol=5e-6, rtol=0)


def flat(parts: tuple[list[Tensor], Tensor]) -> list[Tensor]:
    return [*parts[0], parts[1]]


def test_the_state_of_the_devices_generator_can_be_taken_and_set(
    simulated_npus: SimulatedNpus,
) -> None:
    ((first, again, other),) = simulated_npus.run("attention_probe:drawn_twice_from_one_state")
    assert first == again
    assert first != other
