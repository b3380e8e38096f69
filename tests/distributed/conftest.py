"""One zygote for all tests of this folder."""

from collections.abc import Iterator

import pytest
from forked_workers import ForkedWorkers


@pytest.fixture(scope="session")
def forked_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedWorkers]:
    workers = ForkedWorkers(tmp_path_factory.mktemp("zygote") / "log.txt")
    yield workers
    workers.stop()
