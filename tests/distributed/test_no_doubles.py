"""No float64 in collectives: every test of this folder runs under the rule."""

import pytest
from forked_workers import ForkedWorkers

pytestmark = pytest.mark.distributed


def test_no_collective_carries_float64(forked_workers: ForkedWorkers) -> None:
    for found in forked_workers.run("no_doubles:refusals", ranks=2):
        assert found == [
            f"{name} of torch.float64: an NPU has no such collective"
            for name in ("allreduce", "all_gather_single", "send")
        ]
