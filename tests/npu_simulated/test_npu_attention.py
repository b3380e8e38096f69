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


def test_what_the_kernel_documents_as_refused_is_refused(simulated_npus: SimulatedNpus) -> None:
    made, gradient = heads(4, 4, 16, 16)
    wide = [tensor.repeat(1, 1, 49) for tensor in made]
    (reason,) = simulated_npus.run(
        "attention_probe:refusal", STARTS, wide, gradient.repeat(1, 1, 49)
    )
    assert "head width 784 above 768" in reason
    many = range(len(made[0]) * 26 + 1)
    longer = [tensor.repeat(26, 1, 1) for tensor in (*made, gradient)]
    (reason,) = simulated_npus.run("attention_probe:refusal", many, longer[:3], longer[3])
    assert "1 to 1024 sequences, not 1040" in reason


def test_the_state_of_the_devices_generator_can_be_taken_and_set(
    simulated_npus: SimulatedNpus,
) -> None:
    ((first, again, other),) = simulated_npus.run("attention_probe:drawn_twice_from_one_state")
    assert first == again
    assert first != other
