"""One zygote for all tests of this folder."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from forked_workers import ForkedWorkers


@pytest.fixture(scope="session")
def forked_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedWorkers]:
    workers = ForkedWorkers(tmp_path_factory.mktemp("zygote") / "log.txt")
    yield workers
    workers.stop()
