"""Prefork processes with simulated NPUs for all tests of this folder."""

import os
from collections.abc import Iterator
from functools import cache

import pytest
from simulated import HERE, SimulatedNpus, UnavailableError, Workers, vendors


def packages_of(generation: str) -> dict[str, str]:
    """Return the environment in which Python finds the vendors' packages."""
    try:
        return vendors(generation)
    except UnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no simulated NPU: {error}")


@pytest.fixture(scope="session")
def packages() -> dict[str, str]:
    """The environment in which Python finds the pinned packages."""
    return packages_of("0.23")


@pytest.fixture(scope="session")
def simulated_npus(
    packages: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimulatedNpus]:
    """Of torch_npu alone."""
    npus = SimulatedNpus(packages, tmp_path_factory.mktemp("simulated-npus") / "log.txt")
    yield npus
    npus.stop()


@pytest.fixture(scope="session")
def workers_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Of all that a worker has, by the generation of vllm-ascend."""

    @cache
    def started(generation: str) -> SimulatedNpus:
        log = tmp_path_factory.mktemp("npu-workers") / "log.txt"
        npus = SimulatedNpus(packages_of(generation), log, HERE / "zygote_worker.py")
        running.append(npus)
        return npus

    running: list[SimulatedNpus] = []
    yield started
    for npus in running:
        npus.stop()


@pytest.fixture(scope="session", params=["0.23", pytest.param("0.30", marks=pytest.mark.nightly)])
def npu_workers(workers_of: Workers, request: pytest.FixtureRequest) -> SimulatedNpus:
    """Of each generation."""
    return workers_of(request.param)
