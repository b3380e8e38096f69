"""Which kind of device is taken, and what its worker processes get."""

import os
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from mindrl.errors import ClusterError
from mindrl.platform.device import PLATFORMS, choose_platform

CORES = len(os.sched_getaffinity(0))
ABSENT = [kind for kind, platform in PLATFORMS.items() if not platform.local_devices()]


def test_auto_takes_the_first_of_npu_gpu_and_cpu_that_has_devices() -> None:
    assert list(PLATFORMS) == ["npu", "gpu", "cpu"]
    present = [kind for kind in PLATFORMS if kind not in ABSENT]
    assert choose_platform("auto").kind == present[0]


def test_the_cpu_is_always_there_with_one_slot_per_core_of_this_process() -> None:
    assert choose_platform("cpu").local_devices() == CORES


def test_devices_are_counted_by_their_files_and_by_the_list_of_those_that_are_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("davinci0", "davinci1", "davinci12", "davinci_manager", "nvidia0", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.setenv("MINDRL_DEVICE_FOLDER", str(tmp_path))
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    assert [PLATFORMS[kind].local_devices() for kind in ("npu", "gpu")] == [3, 1]
    assert choose_platform("auto").kind == "npu"
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,12")
    assert PLATFORMS["npu"].local_devices() == 2
    assert PLATFORMS["npu"].device_files() == 3


@pytest.mark.skipif(not ABSENT, reason="every kind of device is here")
def test_a_kind_that_the_machine_lacks_is_refused_with_the_one_it_has() -> None:
    for kind in ABSENT:
        with pytest.raises(ClusterError) as caught:
            choose_platform(kind)
        assert str(caught.value) == (
            f"rl_config.device={kind}: this machine has no such device; "
            f"rl_config.device=auto selects {choose_platform('auto').kind}"
        )


@pytest.mark.parametrize(
    ("kind", "device_type", "resource", "backend"),
    [
        ("npu", "npu", "NPU", "hccl"),
        ("gpu", "cuda", "GPU", "nccl"),
        ("cpu", "cpu", "CPU", "gloo"),
    ],
)
def test_each_kind_has_its_torch_device_its_ray_resource_and_its_backend(
    kind: str, device_type: str, resource: str, backend: str
) -> None:
    platform = next(platform for platform in PLATFORMS.values() if platform.kind == kind)
    assert (platform.device_type, platform.ray_resource, platform.collective_backend) == (
        device_type,
        resource,
        backend,
    )


def test_ray_need_not_look_for_gpus_whatever_the_devices_are() -> None:
    """Ray imports NVIDIA's library to count them if it is given no number."""
    assert {kind: platform.ray_options(4) for kind, platform in PLATFORMS.items()} == {
        "npu": {"num_cpus": 4, "num_gpus": 0, "resources": {"NPU": 4}},
        "gpu": {"num_cpus": 4, "num_gpus": 4},
        "cpu": {"num_cpus": 4, "num_gpus": 0},
    }


def test_workers_share_the_cores_and_each_has_one_thread_at_least() -> None:
    cpu = PLATFORMS["cpu"]
    for workers, threads in ((1, CORES), (CORES, 1), (10 * CORES, 1)):
        environment = cpu.worker_environment(workers=workers, one_machine=True)
        assert environment["OMP_NUM_THREADS"] == str(threads)


def test_gloo_stays_on_the_loopback_interface_where_all_workers_are_on_one_machine() -> None:
    cpu = PLATFORMS["cpu"]
    assert cpu.worker_environment(workers=2, one_machine=True)["GLOO_SOCKET_IFNAME"] == "lo"
    assert "GLOO_SOCKET_IFNAME" not in cpu.worker_environment(workers=2, one_machine=False)


@pytest.mark.parametrize("kind", ["npu", "gpu", "cpu"])
def test_every_worker_keeps_the_engine_in_its_process_and_reports_to_nobody(kind: str) -> None:
    platform = next(platform for platform in PLATFORMS.values() if platform.kind == kind)
    environment = platform.worker_environment(workers=1, one_machine=True)
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_DP_SIZE"] == "1"


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (
            "npu",
            {
                "HCCL_DETERMINISTIC": "true",
                "LCCL_DETERMINISTIC": "1",
                "CLOSE_MATMUL_K_SHIFT": "1",
                "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
                "ATB_LLM_LCOC_ENABLE": "0",
            },
        ),
        (
            "gpu",
            {
                "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
                "NCCL_ALGO": "Ring",
                "TORCHINDUCTOR_DETERMINISTIC": "1",
            },
        ),
        ("cpu", {}),
    ],
)
def test_a_deterministic_worker_has_these_variables_besides_and_no_other_worker_has_any(
    kind: str, wanted: dict[str, str]
) -> None:
    platform = next(platform for platform in PLATFORMS.values() if platform.kind == kind)
    usual = platform.worker_environment(workers=1, one_machine=True)
    assert not usual.keys() & wanted.keys()
    found = platform.worker_environment(workers=1, one_machine=True, deterministic=True)
    assert found == usual | wanted


def test_a_platform_is_data_that_nobody_changes() -> None:
    with pytest.raises(FrozenInstanceError):
        PLATFORMS["cpu"].kind = "npu"  # type: ignore[misc]
