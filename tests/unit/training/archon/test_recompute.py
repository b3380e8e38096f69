"""The configured layers are compiled."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
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
