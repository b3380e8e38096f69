"""What an engine gets because of vllm-ascend, by the release that is installed."""

from importlib import metadata

import pytest

from mindrl.platform import device_engine
from mindrl.platform.device import PLATFORMS
from mindrl.platform.device_engine import engine_options

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
