"""Environments whose processes end while the policy has the turn."""

import time
from contextlib import suppress

import psutil
import torch
from test_conversations import END, MakePool, begun, ids, listen, make_pool, write

from mindrl.trainer.source.environment_turns import EnvironmentTurns
from mindrl.trainer.source.pool import GroupPool, ResponseNumber

__all__ = ["make_pool"]


def environments(pool: GroupPool) -> list[psutil.Process]:
    """Return the processes of the conversations, the oldest first."""
    assert isinstance(pool.turns, EnvironmentTurns)
    # The guard has a child, which forks them.
    guard = psutil.Process(pool.turns.host._process.pid)
    (forker,) = guard.children()
    found = [each for each in forker.children() if each.status() != psutil.STATUS_ZOMBIE]
    return sorted(found, key=psutil.Process.create_time)


def lose(pool: GroupPool, process: psutil.Process) -> None:
    """Kill a process, and let the host see it while the other conversation waits."""
    process.kill()
    with suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
    drawn = torch.tensor([*ids("1"), END]), torch.zeros(len(ids("1")) + 1)
    pool.extend(ResponseNumber(next(iter(pool.groups)), 1), drawn, step=1, finished=True)
    listen(pool)


def ending(pool: GroupPool, response: int) -> str | None:
    conversation = next(iter(pool.groups.values())).sequences[response].conversation
    assert conversation is not None
    return conversation.ending


def test_an_environment_lost_in_a_turn_comes_back_and_one_lost_twice_ends_it(
    make_pool: MakePool,
) -> None:
    pool = begun(make_pool())
    write(pool, 0, "2")
    lose(pool, environments(pool)[0])
    write(pool, 0, "3")
    assert ending(pool, 0) is None
    for _ in range(2):
        lose(pool, environments(pool)[-1])
    # The engine completes the turn that it has begun.
    assert [row.response for row in pool.incomplete()] == [0, 1]
    write(pool, 0, "3")
    assert ending(pool, 0) == "failed"
    assert [row.response for row in pool.incomplete()] == [1]
