"""Prefork processes with simulated NPUs for all tests of this folder."""

import os
from collections.abc import Iterator

import pytest
from simulated import HERE, SimulatedNpus, UnavailableError, vendors


@pytest.fixture(scope="session")
def packages() -> dict[str, str]:
    """The environment in which Python finds the vendors' packages."""
    try:
        return vendors()
    except UnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no simulated NPU: {error}")


@pytest.fixture(scope="session")
def simulated_npus(
    packages: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimulatedNpus]:
    """Of torch_npu alone."""
    npus = SimulatedNpus(packages, tmp_path_factory.mktemp("simulated-npus") / "log.txt")
    yield npus
    npus.stop()


@pytest.fixture(scope="session")
def npu_workers(
    packages: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimulatedNpus]:
    """Of all that a worker has."""
    log = tmp_path_factory.mktemp("npu-workers") / "log.txt"
    npus = SimulatedNpus(packages, log, HERE / "zygote_worker.py")
    yield npus
    npus.stop()
