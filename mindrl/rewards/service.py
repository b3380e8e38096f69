"""The reward service: one light process, started afresh, which forks and speaks for the workers.

Above it is its guard, which outlives it to kill what reward functions leave behind.

A trainer process is full of threads and its main module is heavy, so workers are neither
forked off it nor made to import its main module. They are forked off this one.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from multiprocessing.connection import Connection

from mindrl.errors import MindrlError
from mindrl.rewards.guard import SWEEP
from mindrl.rewards.messages import Pairs, PoolPlan
from mindrl.rewards.pool import WorkerPool


def serve(connection_descriptor: int) -> None:
    """Score the `Pairs` that arrive on the connection until it says None or closes.

    Takes a `PoolPlan` first and answers `Ranges`, or the error that forbids it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard_pid = os.getppid()
    with Connection(connection_descriptor) as connection:
        plan: PoolPlan = connection.recv()
        try:
            pool = WorkerPool(plan, connection_descriptor)
        except MindrlError as error:
            connection.send(error)
            return
        with closing(pool):
            connection.send(pool.ranges)
            for pairs in _requests(connection):
                outcomes = pool.score(pairs)
                os.kill(guard_pid, SWEEP)  # no call is under way: what is left was left behind
                connection.send(outcomes)


def _requests(connection: Connection) -> Iterator[Pairs]:
    with suppress(EOFError, ConnectionResetError):  # the caller left
        yield from iter(connection.recv, None)
