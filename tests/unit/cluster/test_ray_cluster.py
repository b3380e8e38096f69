"""Refusals of a cluster before it starts, and its requests to Ray."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray._private.services import canonicalize_bootstrap_address

from mindrl.cluster.ray_cluster import RayCluster, fits, node_shares, usable_devices
from mindrl.errors import ClusterError
from mindrl.platform.device import PLATFORMS, Platform

CORES = len(os.sched_getaffinity(0))


def cluster_of(platform: Platform, *, devices: int, per_node: int | None = None) -> RayCluster:
    return RayCluster(
        platform, devices=devices, devices_per_node=per_node or devices, timeout_seconds=1
    )


def test_more_devices_than_the_machine_has_are_refused_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = cluster_of(PLATFORMS["cpu"], devices=CORES + 1)
    with pytest.raises(ClusterError) as caught:
        cluster.start()
    assert str(caught.value) == (
        f"rl_config.actor_resource.num_npus={CORES + 1}: this machine has {CORES} CPU device(s); "
        f"use {CORES} or fewer, or set RAY_ADDRESS to join a larger cluster"
    )


def test_devices_of_spread_roles_are_not_said_to_be_the_actors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    asked = cluster_of(PLATFORMS["cpu"], devices=CORES + 2)
    with pytest.raises(ClusterError) as caught:
        replace(asked, rollout_devices=1, is_spread=True).start()
    assert str(caught.value).startswith(
        f"roles on {CORES + 1} devices in total (rl_config.*_resource) and "
        f"rl_config.rollout_resource.num_npus=1: this machine has {CORES} CPU device(s); "
    )


def test_a_setting_that_breaks_the_engine_is_refused_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True")
    cluster = cluster_of(PLATFORMS["npu"], devices=8)
    with pytest.raises(ClusterError) as caught:
        cluster.start()
    assert str(caught.value) == (
        "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True: the memory pool of the engine's sleep "
        "mode does not support expandable segments, and mindrl puts the engine to sleep in every "
        "step; "
        "unset it or change it"
    )


def test_a_ray_that_does_not_come_up_in_time_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_gcs_server_port_wait_time_s", "0")
    cluster = cluster_of(PLATFORMS["cpu"], devices=1)
    with pytest.raises(
        ClusterError, match=r"did not start on this machine in 3 attempts: .*see the logs in"
    ):
        cluster.start()
    assert not ray.is_initialized()
    children = psutil.Process().children(recursive=True)
    assert not [each for each in children if each.name() == "gcs_server"]


@pytest.mark.nightly
def test_a_ray_that_comes_up_in_time_at_the_second_attempt_is_used() -> None:
    script = Path(__file__).with_name("slow_ray.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "present [1] servers 1",
        "initialized False servers 0",
    ]
    assert done.stderr.count("trying again, logs in") == 1


def test_devices_without_a_cpu_of_ray_cannot_be_reserved() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0, "NPU": 8.0}},
        {"Alive": True, "Resources": {"CPU": 64.0, "NPU": 8.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "NPU": 16.0}},
        {"Alive": True, "Resources": {"CPU": 64.0}},
    ]
    assert usable_devices(nodes, "NPU") == [8, 4, 0]
    assert usable_devices(nodes, "CPU") == [64, 64, 4]


def test_a_named_cluster_is_joined_and_not_counted_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    cluster = cluster_of(PLATFORMS["cpu"], devices=CORES + 1)
    assert not cluster.started_here
    cluster._check_local_devices()


def test_without_an_address_the_cluster_is_the_runs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = cluster_of(PLATFORMS["cpu"], devices=CORES)
    assert cluster.started_here
    cluster._check_local_devices()


def test_one_machine_is_one_node_whatever_the_devices_of_a_node_are_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(Platform, "local_devices", lambda _: 16)
    with pytest.raises(ClusterError) as caught:
        cluster_of(PLATFORMS["npu"], devices=16, per_node=8)._check_local_devices()
    assert str(caught.value) == (
        "rl_config.actor_resource.npus_per_node=8: all 16 devices of this run are on this machine; "
        "use 16, or set RAY_ADDRESS to join a larger cluster"
    )


def test_a_worker_is_on_the_node_that_is_asked_for_and_has_its_share_of_that_nodes_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(192)))
    cluster = cluster_of(PLATFORMS["npu"], devices=384, per_node=16)
    options = [cluster.worker_options(node, deterministic=False) for node in range(24)]
    bundles = [each["scheduling_strategy"].placement_group_bundle_index for each in options]
    assert bundles == [*range(24)]
    threads = {each["runtime_env"]["env_vars"]["OMP_NUM_THREADS"] for each in options}
    assert threads == {"12"}
    small = cluster_of(PLATFORMS["npu"], devices=4, per_node=16)
    environment = small.worker_options(0, deterministic=False)["runtime_env"]["env_vars"]
    assert environment["OMP_NUM_THREADS"] == "48"


@pytest.mark.parametrize(
    ("devices", "per_node", "shares"), [(16, 8, [8, 8]), (20, 8, [8, 8, 4]), (4, 8, [4])]
)
def test_a_node_gives_its_share_of_the_devices(
    devices: int, per_node: int, shares: list[int]
) -> None:
    assert node_shares(devices, per_node) == shares


@pytest.mark.parametrize(
    ("present", "holds"),
    [([8, 8], True), ([16, 8, 1], True), ([16], False), ([16, 7], False), ([], False)],
)
def test_16_devices_on_nodes_of_8_need_two_nodes_with_8_each(
    present: list[int], holds: bool
) -> None:
    assert fits([8, 8], present) is holds


def test_nodes_may_give_what_the_worlds_of_a_run_take_of_them() -> None:
    cluster = cluster_of(PLATFORMS["npu"], devices=10, per_node=8)
    cluster.own_shares, cluster.rollout_devices = (4, 6), 6
    assert cluster.shares == (4, 6)
    # The largest finds its node, wherever it stands.
    assert fits(cluster.shares, [8, 4])
    assert not fits(cluster.shares, [5, 5])
    assert cluster.requested == (
        "rl_config.actor_resource.num_npus=4 and rl_config.rollout_resource.num_npus=6"
    )


def test_no_cluster_that_somebody_else_started_here_is_joined_unasked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A user's `ray start` has left its address in Ray's own folder.
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("192.0.2.9:6379")
    asked: dict[str, Any] = {}

    def init(**options: Any) -> None:
        asked.update(options)
        raise ConnectionError

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ClusterError):
        cluster_of(PLATFORMS["cpu"], devices=1).start()
    assert canonicalize_bootstrap_address(None, None) == "192.0.2.9:6379"
    assert canonicalize_bootstrap_address(asked.get("address"), asked["_temp_dir"]) is None


@pytest.mark.nightly
@pytest.mark.parametrize("below", ["", "x" * 80], ids=["short", "too long"])
def test_what_a_run_killed_while_ray_starts_has_left_is_removed_by_the_next_one(
    below: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tempfile.mkdtemp(prefix="c")
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(cache) / below))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    told = tmp_path / "folder"
    code = f"""
import os, pathlib, ray, signal

def init(**options):
    folder = pathlib.Path(options["_temp_dir"])
    (folder / "session_latest").write_text("sockets and logs")
    pathlib.Path({str(told)!r}).write_text(str(folder))
    os.kill(os.getpid(), signal.SIGKILL)

ray.init = init
from mindrl.cluster.ray_cluster import RayCluster
from mindrl.platform.device import PLATFORMS
RayCluster(PLATFORMS["cpu"], devices=1, devices_per_node=1, timeout_seconds=1).start()
"""
    try:
        ended = subprocess.run([sys.executable, "-c", code], check=False)
        assert ended.returncode == -signal.SIGKILL
        left = Path(told.read_text())
        assert (left / "session_latest").exists()
        # Ray's longest socket path, with the longest process id.
        session = "session_2026-12-31_23-59-59_999999_4194304/sockets/plasma_store"
        assert len(str(left / session)) <= 107
        subprocess.run([sys.executable, "-c", code], check=False)
        assert not left.exists()
    finally:
        for each in (Path(told.read_text()), Path(cache)):
            shutil.rmtree(each, ignore_errors=True)
