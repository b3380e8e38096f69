"""What an engine gets because of vllm-ascend, by the release that is installed.

What it loses in its sleep is shown with the real packages: tests/npu_simulated/test_npu_engine.py.
"""

from importlib import metadata

import pytest
import torch
from torch.nn import Module

from mindrl.platform import device_engine
from mindrl.platform.device import PLATFORMS
from mindrl.platform.device_engine import Leftovers, engine_options

FOR_TRAINING = {"rl_config": {"enabled": True}}


@pytest.mark.parametrize(
    ("release", "is_told"),
    [("0.23.0.post1", False), ("0.29.3", False), ("0.30.0rc2", True), ("0.31.0", True)],
)
def test_an_engine_is_told_that_its_weights_will_change_where_the_plugin_asks_for_it(
    release: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_engine, "version", lambda _: release)
    options = engine_options(PLATFORMS["npu"])
    assert options.get("additional_config") == (FOR_TRAINING if is_told else None)
    assert options["enable_sleep_mode"] is True
    for kind in ("cpu", "gpu"):
        assert engine_options(PLATFORMS[kind]) == PLATFORMS[kind].engine_options


def test_without_the_plugin_options_are_those_of_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(device_engine, "version", none)
    assert engine_options(PLATFORMS["npu"]) == PLATFORMS["npu"].engine_options


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
    monkeypatch.setattr(device_engine, "_is_on_device", lambda tensor: tensor is layer.expert_map)
    found = Leftovers.of(layer, PLATFORMS["npu"])
    assert [id(each) for each in found.tensors] == [id(layer.expert_map)]
    layer.expert_map.fill_(77)
    found.restore()
    assert layer.expert_map.tolist() == [0, 1, -1, -1]
