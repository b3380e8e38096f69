"""Tensors that an engine loses in its sleep, told from those that are kept.

With the real packages: tests/npu_simulated/test_npu_engine.py.
"""

import pytest
import torch
from torch.nn import Module

from mindrl.platform import leftovers
from mindrl.platform.device import PLATFORMS
from mindrl.platform.leftovers import Leftovers


def test_plain_attributes_that_are_no_views_of_weights_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Layer(Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.ones(2, device="meta"))
            self.expert_map = torch.tensor([0, 1, -1, -1])
            self.view = self.kept[:1]

    assert Leftovers.of(Layer(), PLATFORMS["cpu"]).tensors == []
    layer = Layer()
    # The host's memory stands for the device's.
    monkeypatch.setattr(leftovers, "_is_on_device", lambda tensor: tensor is layer.expert_map)
    found = Leftovers.of(layer, PLATFORMS["npu"])
    assert [id(each) for each in found.tensors] == [id(layer.expert_map)]
    layer.expert_map.fill_(77)
    found.restore()
    assert layer.expert_map.tolist() == [0, 1, -1, -1]


@pytest.mark.parametrize("kind", ["npu", "gpu"])
def test_a_model_that_drafts_has_its_weights_again_after_a_sleep(kind: str) -> None:
    draft = torch.nn.Linear(3, 2)
    draft.register_buffer("table", torch.arange(4.0))
    found = Leftovers.of(Module(), PLATFORMS[kind], draft)
    before = {name: each.clone() for name, each in draft.state_dict().items()}
    with torch.no_grad():
        for each in draft.state_dict().values():
            each.fill_(7.0)
    found.restore()
    assert all(torch.equal(each, before[name]) for name, each in draft.state_dict().items())
    assert Leftovers.of(Module(), PLATFORMS["cpu"], draft).tensors == []
