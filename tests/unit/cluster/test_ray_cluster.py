"""What a cluster refuses before it is started."""

import os

import pytest

from mindrl.cluster.ray_cluster import RayCluster
from mindrl.errors import ClusterError
from mindrl.platform.device import PLATFORMS

CORES = len(os.sched_getaffinity(0))


def test_more_devices_than_the_machine_has_are_refused_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = RayCluster(PLATFORMS["cpu"], devices=CORES + 1, timeout_seconds=1)
    with pytest.raises(ClusterError) as caught:
        cluster.__enter__()
    assert str(caught.value) == (
        f"rl_config.actor_resource.num_npus={CORES + 1}: this machine has {CORES} CPU device(s); "
        f"use {CORES} or fewer, or set RAY_ADDRESS to join a larger cluster"
    )


def test_a_setting_that_breaks_the_engine_is_refused_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True")
    cluster = RayCluster(PLATFORMS["npu"], devices=8, timeout_seconds=1)
    with pytest.raises(ClusterError) as caught:
        cluster.__enter__()
    assert str(caught.value) == (
        "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True: the memory pool of the engine's sleep "
        "mode refuses expandable segments, and mindrl puts the engine to sleep at every step; "
        "unset it or change it"
    )


def test_a_named_cluster_is_joined_and_not_counted_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    cluster = RayCluster(PLATFORMS["cpu"], devices=CORES + 1, timeout_seconds=1)
    assert not cluster.started_here
    cluster._check_local_devices()


def test_without_an_address_the_cluster_is_the_runs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = RayCluster(PLATFORMS["cpu"], devices=CORES, timeout_seconds=1)
    assert cluster.started_here
    cluster._check_local_devices()
