"""Whose value of an environment variable a worker gets, and which values no run starts with."""

from pathlib import Path

import pytest

from mindrl.errors import ClusterError
from mindrl.platform.device import PLATFORMS, prepare_process
from mindrl.platform.setting import refusals, settings_by_owner, values

NPU = PLATFORMS["npu"]
NPU_SETTINGS = settings_by_owner()["npu"]


def worker(**environment: str) -> dict[str, str]:
    return values(NPU_SETTINGS, environment, deterministic=False)


def test_a_default_is_the_users_where_he_has_set_it_and_a_fixed_one_is_not() -> None:
    assert worker()["HCCL_CONNECT_TIMEOUT"] == "1800"
    assert worker(HCCL_CONNECT_TIMEOUT="7200")["HCCL_CONNECT_TIMEOUT"] == "7200"
    assert worker(VLLM_ASCEND_ENABLE_NZ="2")["VLLM_ASCEND_ENABLE_NZ"] == "0"
    assert "TASK_QUEUE_ENABLE" not in worker(TASK_QUEUE_ENABLE="2")


@pytest.mark.parametrize(
    ("name", "refused", "taken"),
    [
        ("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", "max_split_size_mb:250"),
        ("PYTORCH_NPU_ALLOC_CONF", "page_size:1g,expandable_segments:True", "page_size:1g"),
        ("VLLM_ASCEND_ENABLE_FLASHCOMM1", "1", "0"),
        ("VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE", "2", "0"),
        ("ASCEND_RT_VISIBLE_DEVICES", "4, 5", "4,5"),
    ],
)
def test_a_value_that_breaks_a_run_is_refused_with_its_reason(
    name: str, refused: str, taken: str
) -> None:
    (sentence,) = refusals(NPU_SETTINGS, {name: refused})
    assert sentence.startswith(f"{name}={refused}: ")
    assert sentence.endswith("; unset it or change it")
    assert refusals(NPU_SETTINGS, {name: taken}) == []


def test_a_worker_does_not_go_on_with_a_refused_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(ClusterError, match=r"^PYTORCH_NPU_ALLOC_CONF=expandable_segments:True: "):
        prepare_process(NPU)
    PLATFORMS["gpu"].refuse_settings()


@pytest.mark.parametrize("kind", ["npu", "gpu", "cpu"])
def test_each_variable_has_one_rule_a_reason_and_a_source(kind: str) -> None:
    settings = next(each.settings for each in PLATFORMS.values() if each.kind == kind)
    names = [setting.name for setting in settings]
    assert len(names) == len(set(names))
    for setting in settings:
        assert setting.why
        assert setting.source
        assert bool(setting.value) or setting.rule in ("refused", "left")
        assert bool(setting.pattern) or setting.rule != "refused"


def test_a_device_is_known_to_torch_by_its_place_in_the_visible_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    assert NPU.visible_devices() is None
    assert NPU.device_index("6") == 6
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4,5,6,7")
    assert NPU.visible_devices() == ["4", "5", "6", "7"]
    assert NPU.device_index("6") == 2
    # CUDA permits blanks, and Ray keeps them in the names of devices.
    gpu = PLATFORMS["gpu"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 5")
    assert [gpu.device_index(name) for name in ("4", " 5")] == [0, 1]


@pytest.mark.parametrize(
    ("kind", "listed", "seen"),
    [
        ("gpu", "", []),
        ("gpu", "-1", []),
        ("npu", "-1", []),
        ("gpu", "NoDevFiles", []),
        ("npu", "0,-1,1", ["0"]),
        ("gpu", "0,1,", ["0", "1"]),
        ("gpu", "GPU-8932f937,MIG-7b2e", ["GPU-8932f937", "MIG-7b2e"]),
    ],
)
def test_the_first_entry_that_names_no_device_ends_the_visible_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, listed: str, seen: list[str]
) -> None:
    for number in range(2):
        (tmp_path / f"nvidia{number}").touch()
        (tmp_path / f"davinci{number}").touch()
    monkeypatch.setenv("MINDRL_DEVICE_FOLDER", str(tmp_path))
    platform = PLATFORMS[kind]
    monkeypatch.setenv(str(platform.visible_variable), listed)
    assert platform.visible_devices() == seen
    assert platform.local_devices() == len(seen)
