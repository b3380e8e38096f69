"""What an engine gets because of vllm-ascend, by the release that is installed."""

import os
from importlib import metadata

import pytest

from mindrl.platform import device_engine
from mindrl.platform.device import PLATFORMS
from mindrl.platform.device_engine import (
    engine_options,
    lacks_for_batch_invariance,
    make_batch_invariant,
)

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


INVARIANT = {"enable_batch_invariant": True, "enable_training_consistency": True}


def test_batch_invariant_kernels_are_both_switches_and_whole_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_engine, "version", lambda _: "0.30.0")
    options = engine_options(PLATFORMS["npu"], batch_invariant=True)
    assert options["additional_config"] == {"rl_config": {"enabled": True} | INVARIANT}
    assert (options["enable_chunked_prefill"], options["block_size"]) == (False, 128)


def test_a_batch_invariant_engine_on_cpu_rotates_as_the_trainer() -> None:
    """Its own kernel rounds differently on some processors: tests/e2e/test_zero_gap.py."""
    options = engine_options(PLATFORMS["cpu"], batch_invariant=True)
    assert options["compilation_config"] == {"custom_ops": ["-rotary_embedding"]}


@pytest.mark.parametrize(
    ("release", "lacks"),
    [("0.23.0.post1", ["vllm-ascend 0.30 or later"]), ("0.30.0rc2", [])],
)
def test_a_machine_lacks_the_release_and_the_packages_that_are_not_there(
    release: str, lacks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_engine, "version", lambda _: release)
    found = [*lacks_for_batch_invariance(PLATFORMS["npu"])]
    assert found[: len(lacks)] == lacks
    assert [each.split(" ")[0] for each in found[len(lacks) :]] == [
        "batch_invariant_ops",
        "flash_attn_npu_v3",
    ]
    assert [*lacks_for_batch_invariance(PLATFORMS["gpu"])] == []


def test_a_gpu_gets_the_variable_of_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    make_batch_invariant(PLATFORMS["gpu"])
    assert os.environ["VLLM_BATCH_INVARIANT"] == "1"
