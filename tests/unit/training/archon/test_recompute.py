"""The configured layers are compiled."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from mindrl.config.archon import ArchonConfig
from mindrl.training.archon.recompute import prepare_layers


def test_layers_are_compiled_in_a_process_that_compiles_nothing_else() -> None:
    """Workers on CPU have `TORCH_COMPILE_DISABLE=1`, for the sake of the rollout engine."""
    layers, asked = [nn.Linear(4, 4) for _ in range(2)], ArchonConfig(enable_compile=True)
    given, before = torch.ones(2, 4), counters["stats"]["unique_graphs"]
    expected = [layer(given) for layer in layers]
    network: Any = SimpleNamespace(layers=layers)
    elsewhere = torch.compile(nn.Linear(4, 4), backend="eager")
    with torch._dynamo.config.patch(disable=True):
        prepare_layers(network, asked, backend="eager")
        found = [layer(given) for layer in layers]
        elsewhere(given)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert before < counters["stats"]["unique_graphs"] <= before + len(layers)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, given: Tensor) -> Tensor:
        return self.down(self.up(given).sin().cos()).tanh()


def test_each_role_keeps_its_own_fraction_of_the_activations() -> None:
    counters.clear()
    layers = {share: _Layer() for share in (1.0, 0.0)}
    for share, layer in layers.items():
        asked = ArchonConfig(enable_compile=True, ac_mode="memory_budget", ac_memory_budget=share)
        network: Any = SimpleNamespace(layers=[layer, _Layer()])
        # The partitioner of inductor, without its code generation.
        prepare_layers(network, asked, backend="aot_eager_decomp_partition")
    kept = {share: _kept_values(layer) for share, layer in layers.items()}
    # Both have the input and the weights; only the first the results of the layer's operations.
    assert kept[1.0] - kept[0.0] > 4 * 32
    assert counters["stats"]["unique_graphs"] == 2


def _kept_values(layer: nn.Module) -> int:
    """Return the number of values that the backward pass of a batch of four reads."""
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(torch.ones(4, 8, requires_grad=True))
    return sum(kept)
