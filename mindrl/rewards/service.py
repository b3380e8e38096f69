"""The reward service: one light process, started afresh, which forks and speaks for the workers.

Above it is its guard, which outlives it to kill what reward functions leave behind.

A trainer process is full of threads and its main module is heavy, so workers are neither
forked off it nor made to import its main module. They are forked off this one.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection

from mindrl.errors import MindrlError
from mindrl.rewards.guard import SWEEP
from mindrl.rewards.messages import Failure, Outcome, Outcomes, PoolPlan, ScoreRequest
from mindrl.rewards.pool import Chunk, ChunkResult, WorkerPool

RESPONSES_PER_CHUNK = 32
CHUNKS_PER_PROCESS = 4
"""At least, where there are responses enough: an even load matters more than the cost of a task."""
LOSSES_ALLOWED = 3


def serve(connection_descriptor: int) -> None:
    """Score the requests that arrive on the connection until it says None or closes.

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
        try:
            connection.send(pool.ranges)
            for request in _requests(connection):
                outcomes = score_request(pool, plan, request)
                os.kill(guard_pid, SWEEP)  # no call is under way: what is left was left behind
                connection.send(outcomes)
        finally:
            pool.close()


def score_request(pool: WorkerPool, plan: PoolPlan, request: ScoreRequest) -> Outcomes:
    """Score every response with every function.

    A chunk whose worker hung or died is run again one response at a time, so that only
    the guilty ones fail.
    """
    outcomes: dict[str, dict[int, Outcome]] = {function: {} for function in plan.functions}
    chunks = list(first_chunks(plan, len(request.responses)))
    while chunks:
        results = pool.run(chunks, request)
        chunks = []
        for chunk, result in results:
            outcomes[chunk.function].update(settled(chunk, result))
            chunks.extend(remaining(chunk, result))
    return {
        function: tuple(by_index[index] for index in range(len(request.responses)))
        for function, by_index in outcomes.items()
    }


def first_chunks(plan: PoolPlan, responses: int) -> Iterator[Chunk]:
    """Cut the responses into chunks of at most 32, smaller where workers would stand idle."""
    even = -(-responses // (plan.processes * CHUNKS_PER_PROCESS))
    size = min(RESPONSES_PER_CHUNK, even)
    for function in plan.functions:
        for start in range(0, responses, size):
            yield Chunk(function=function, indices=range(start, min(start + size, responses)))


def settled(chunk: Chunk, result: ChunkResult) -> dict[int, Outcome]:
    """Return the outcomes, by index, that a result makes final."""
    match result:
        case None if chunk.times_lost >= LOSSES_ALLOWED and len(chunk.indices) == 1:
            detail = f"the scoring processes broke {chunk.times_lost + 1} times"
            return {chunk.indices[0]: Failure(kind="crash", detail=detail)}
        case None:
            return {}
        case Failure():
            return {chunk.indices[0]: result} if len(chunk.indices) == 1 else {}
        case _:
            return dict(zip(chunk.indices, result, strict=False))


def remaining(chunk: Chunk, result: ChunkResult) -> list[Chunk]:
    """Return the chunks still to run after a result."""
    match result:
        case None if chunk.times_lost < LOSSES_ALLOWED:
            return [replace(chunk, times_lost=chunk.times_lost + 1)]
        case None | Failure():
            return _one_by_one(chunk) if len(chunk.indices) > 1 else []
        case _ if len(result) < len(chunk.indices):
            return [replace(chunk, indices=chunk.indices[len(result) :])]
        case _:
            return []


def _one_by_one(chunk: Chunk) -> list[Chunk]:
    return [Chunk(function=chunk.function, indices=(index,)) for index in chunk.indices]


def _requests(connection: Connection) -> Iterator[ScoreRequest]:
    """Yield requests until the caller says None or leaves."""
    while True:
        try:
            request: ScoreRequest | None = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        if request is None:
            return
        yield request
