"""One zygote over simulated NPUs for all tests of this folder."""

import os
from collections.abc import Iterator

import pytest
from simulated import SimulatedNpus, UnavailableError


@pytest.fixture(scope="session")
def simulated_npus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedNpus]:
    try:
        npus = SimulatedNpus(tmp_path_factory.mktemp("simulated-npus") / "log.txt")
    except UnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no simulated NPU: {error}")
    yield npus
    npus.stop()
