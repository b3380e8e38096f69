"""How many reward processes a run starts."""

import pytest

from mindrl.config.resources import ActorResource
from mindrl.config.rl import RLConfig
from mindrl.rewards.scorer import reward_processes


@pytest.mark.parametrize(
    ("cores", "workers", "given", "expected"),
    [
        (2, 2, None, 1),
        (16, 2, None, 14),
        # 16 devices on two nodes: 8 of this node's cores drive them.
        (20, 16, None, 12),
        (192, 8, None, 16),
        (2, 2, 5, 5),
        (192, 8, 1, 1),
    ],
)
def test_processes_are_as_many_as_the_cores_that_workers_leave(
    cores: int, workers: int, given: int | None, expected: int
) -> None:
    resource = ActorResource(num_npus=workers, npus_per_node=8)
    rl = RLConfig(mini_batch_size=1, actor_resource=resource, verifier_parallel=given)
    assert reward_processes(rl, cores) == expected
