"""The reward service: one small new process, with a pool of scoring processes.

The pool survives the failure of any of its processes. The parent of the service is its guard, which
outlives it to kill processes that reward functions leave.

A trainer process has many threads and a large main module, so workers are not forked from it and do
not import its main module. They are forked from the service.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkProcess

from pebble import ProcessExpired, ProcessPool

from mindrl.errors import MindrlError, RewardError
from mindrl.platform.guard import SWEEP
from mindrl.rewards.functions import score_range
from mindrl.rewards.prints import keep_prints
from mindrl.rewards.scores import Failure, Outcome, Outcomes, PoolPlan, Ready, RowsByFunction
from mindrl.rewards.worker import (
    SETTLING_SECONDS,
    isolate_worker,
    load_reward,
    score_rows,
)

WORKER_START_SECONDS = 60.0
STALL_SECONDS = 30.0
"""Time beyond the limit without any result after which the pool itself counts as stuck."""
EXIT_ZERO = 256
RESPONSES_PER_CHUNK = 32
"""Maximum."""
RESPONSES_PER_CALL = 64
"""Maximum for a function that takes lists, or is asynchronous."""
CHUNKS_PER_PROCESS = 4
"""Minimum, if there are enough responses: balance matters more than the cost of a task."""
LOSSES_ALLOWED = 3
FAILURES_ALLOWED = 32
"""Failures in a row after which a function may be hopeless."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Responses that one worker scores with one function."""

    function: str
    indices: Sequence[int]
    """Indices in the batch."""
    times_lost: int = 0
    is_last: bool = False
    """Last try for a response that was late: if late again, it fails."""


Scored = list[Outcome] | Failure
ChunkResult = Scored | None
"""Outcomes of a first part of the chunk, or why its worker failed; None: lost for other reasons."""


@dataclass(kw_only=True, slots=True)
class _Streak:
    began: float = field(default_factory=time.monotonic)
    failures: list[Failure] = field(default_factory=list)
    """Failures of single responses."""
    lost_chunks: int = 0
    """Failures of several responses: one of them may have caused it."""


class FailureStreaks:
    """Failures of each function since its last score in a batch."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._streaks: dict[str, _Streak] = {}

    def add(self, chunk: Chunk, result: ChunkResult) -> None:
        """Add a result; None counts as nothing."""
        if isinstance(result, Failure) and len(chunk.indices) > 1:
            self._streaks.setdefault(chunk.function, _Streak()).lost_chunks += 1
            return
        for outcome in [result] if isinstance(result, Failure) else result or []:
            if isinstance(outcome, Failure):
                self._streaks.setdefault(chunk.function, _Streak()).failures.append(outcome)
            else:
                self._streaks.pop(chunk.function, None)

    def hopeless(self) -> dict[str, Failure]:
        """Return the functions that failed too often and too long, with their first failure."""
        failures = {function: each.failures for function, each in self._long().items()}
        return {name: each[0] for name, each in failures.items() if len(each) >= FAILURES_ALLOWED}

    def doubtful(self) -> set[str]:
        """Return the functions that failed too long, also for several responses at once.

        Only calls for single responses show whether such a function is hopeless.
        """
        return {function for function, each in self._long().items() if each.lost_chunks}

    def _long(self) -> dict[str, _Streak]:
        latest = time.monotonic() - self._patience_seconds
        return {name: each for name, each in self._streaks.items() if each.began <= latest}


class ScoringProcess(ForkProcess):
    """A worker process, adapted for pebble."""

    @property
    def exitcode(self) -> int | None:
        """Exit code, with 0 as 256: pebble treats 0 as a worker that retired without a task."""
        code = super().exitcode
        return EXIT_ZERO if code == 0 else code

    def terminate(self) -> None:
        """Kill the worker: a Python handler of SIGTERM does not run during a long C call."""
        self.kill()


class WorkerContext(ForkContext):
    """Forks workers from the service, which has imported every function."""

    Process = ScoringProcess


class WorkerPool:
    """The scoring processes; runs in the service's process."""

    def __init__(self, plan: PoolPlan, connection_descriptor: int) -> None:
        """Import every function and start the workers.

        Raises:
            ConfigError: a function cannot be resolved.
            RewardError: no worker started in time.
        """
        self._rewards = {each.name: each for each in plan.rewards}
        loaded = {name: load_reward(each) for name, each in self._rewards.items()}
        self.ready = Ready(
            ranges={name: score_range(each.call) for name, each in loaded.items()},
            fields={name: tuple(field for _, field in each.taken) for name, each in loaded.items()},
            places={name: each.place for name, each in loaded.items()},
        )
        self._plan = plan
        self._descriptors = (connection_descriptor, keep_prints(plan.prints))
        self._pool = self._start()

    def score(self, rows: RowsByFunction) -> Outcomes:
        """Score the responses of each function.

        A chunk whose worker hung or died is run again one response at a time, so that only the
        responses at fault fail. A response that is late on its own is retried after all others: on
        a busy machine right answers may be late. If a function becomes doubtful, such as that of a
        server that hangs, the remaining responses are run one at a time; if it becomes hopeless,
        it fails for them.
        """
        streaks = FailureStreaks(self._plan.patience_seconds)
        outcomes: dict[str, dict[int, Outcome]] = {name: {} for name in rows}
        chunks = [
            Chunk(function=function, indices=indices)
            for function, responses in rows.items()
            for indices in self._shares(function, len(responses))
        ]
        while chunks:
            results = self._run(chunks, rows, streaks)
            chunks, hopeless, doubtful = [], streaks.hopeless(), streaks.doubtful()
            for chunk, result in results:
                final, rest = settled(chunk, result)
                outcomes[chunk.function] |= final
                if failure := hopeless.get(chunk.function):
                    left = [index for each in rest for index in each.indices]
                    outcomes[chunk.function] |= dict.fromkeys(left, failure)
                elif chunk.function in doubtful:
                    chunks += [part for each in rest for part in _singles(each)]
                else:
                    chunks += rest
        return {
            function: tuple(by_index[index] for index in range(len(by_index)))
            for function, by_index in outcomes.items()
        }

    def _shares(self, function: str, count: int) -> Iterator[range]:
        """Divide the responses of a function into chunks."""
        loaded, places = load_reward(self._rewards[function]), range(count)
        is_plain = not loaded.signature.is_batch and not loaded.signature.is_async
        even = self._plan.processes * (CHUNKS_PER_PROCESS if is_plain else 1)
        size = min(RESPONSES_PER_CHUNK if is_plain else RESPONSES_PER_CALL, -(-count // even))
        for start in places[::size]:
            yield places[start : start + size]

    def close(self) -> None:
        """Kill and reap the workers."""
        self._pool.stop()
        self._pool.join()

    def _run(
        self, chunks: Iterable[Chunk], rows: RowsByFunction, streaks: FailureStreaks
    ) -> list[tuple[Chunk, ChunkResult]]:
        """Send every chunk to a worker and wait for all; the order is that of the chunks."""
        if not self._pool.active:
            self._replace()
        futures = {self._schedule(chunk, rows): chunk for chunk in chunks}
        self._wait(futures, streaks)
        return [(chunk, self._result(chunk, future)) for future, chunk in futures.items()]

    def _start(self) -> ProcessPool:
        pool = ProcessPool(
            max_workers=self._plan.processes,
            initializer=isolate_worker,
            initargs=(os.getpid(), *self._descriptors),
            context=WorkerContext(),
        )
        try:
            pool.schedule(os.getpid).result(timeout=WORKER_START_SECONDS)
        except (TimeoutError, ProcessExpired, RuntimeError) as error:
            pool.stop()
            pool.join()
            raise RewardError(
                f"no scoring process started within {WORKER_START_SECONDS:.0f} s: {error!r}"
            ) from error
        return pool

    def _replace(self) -> None:
        self.close()
        self._pool = self._start()

    def _seconds(self, chunk: Chunk) -> float:
        """Return the time limit of a worker for a chunk."""
        loaded = load_reward(self._rewards[chunk.function])
        if not (loaded.signature.is_batch or loaded.signature.is_async):
            return self._plan.timeout_seconds
        rounds = -(-len(chunk.indices) // loaded.concurrency)
        return self._plan.timeout_seconds * rounds + loaded.signature.is_async

    def _schedule(self, chunk: Chunk, rows: RowsByFunction) -> Future[Scored]:
        responses = rows[chunk.function]
        chosen = [responses[index] for index in chunk.indices]
        try:
            future: Future[Scored] = self._pool.schedule(
                score_rows,
                args=(self._rewards[chunk.function], chosen, self._plan.timeout_seconds),
                timeout=self._seconds(chunk) + SETTLING_SECONDS,
            )
        except RuntimeError as error:  # the pool broke since the last check
            future = Future()
            future.set_exception(error)
        return future

    def _wait(self, futures: Mapping[Future[Scored], Chunk], streaks: FailureStreaks) -> None:
        """Wait for all, or until the pool breaks or stalls; then create a new pool.

        A worker that dies while it holds pebble's locks (for example out of memory) would block
        every other worker forever. Calls of a function that becomes hopeless are cancelled; if it
        becomes doubtful, those for several responses that have not begun.
        """
        pending = set(futures)
        stall_seconds = max(self._seconds(chunk) for chunk in futures.values()) + STALL_SECONDS
        deadline = time.monotonic() + stall_seconds
        while pending:
            done, pending = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in done:
                streaks.add(futures[future], self._result(futures[future], future))
            hopeless, doubtful = streaks.hopeless(), streaks.doubtful()
            for future in pending:
                function, waits = futures[future].function, not future.running()
                several = len(futures[future].indices) > 1
                if function in hopeless or (function in doubtful and several and waits):
                    future.cancel()
            if done:
                deadline = time.monotonic() + stall_seconds
            elif not self._pool.active or time.monotonic() > deadline:
                self._replace()
                return

    def _result(self, chunk: Chunk, future: Future[Scored]) -> ChunkResult:
        if not future.done() or future.cancelled():
            return None
        match future.exception():
            case None:
                found = future.result()
                if self._plan.is_trial and isinstance(found, Failure) and found.kind == "value":
                    return [found] * len(chunk.indices)
                return found
            case TimeoutError():
                detail = f"no score within {self._plan.timeout_seconds:g} s"
                failure = Failure(kind="timeout", detail=detail)
            case ProcessExpired() as error:
                detail = f"process ended: {_exit_reason(error.exitcode)}"
                failure = Failure(kind="crash", detail=detail)
            case _:
                return None
        return replace(
            failure, detail=f"{detail} ({load_reward(self._rewards[chunk.function]).place})"
        )


def settled(chunk: Chunk, result: ChunkResult) -> tuple[dict[int, Outcome], list[Chunk]]:
    """Return the final outcomes of a result, by index, and the chunks still to run."""
    if isinstance(result, list):
        left = chunk.indices[len(result) :]
        found = dict(zip(chunk.indices, result, strict=False))
        late = [each for each, outcome in found.items() if _is_late(outcome) and not chunk.is_last]
        rest = [replace(chunk, indices=left)] if left else []
        final = {each: outcome for each, outcome in found.items() if each not in late}
        return final, rest + [_last(chunk, index) for index in late]
    if result is None and chunk.times_lost < LOSSES_ALLOWED:
        return {}, [replace(chunk, times_lost=chunk.times_lost + 1)]
    if len(chunk.indices) > 1:
        return {}, _singles(replace(chunk, times_lost=0))
    if _is_late(result) and not chunk.is_last:
        return {}, [_last(chunk, chunk.indices[0])]
    broken = f"the scoring processes ended {chunk.times_lost + 1} times"
    return {chunk.indices[0]: result or Failure(kind="crash", detail=broken)}, []


def _singles(chunk: Chunk) -> list[Chunk]:
    """Divide a chunk into those of one response."""
    return [replace(chunk, indices=(index,)) for index in chunk.indices]


def _last(chunk: Chunk, index: int) -> Chunk:
    """Return the last try for one response of a chunk."""
    return Chunk(function=chunk.function, indices=(index,), is_last=True)


def _is_late(outcome: object) -> bool:
    return isinstance(outcome, Failure) and outcome.kind == "timeout"


def _exit_reason(exitcode: int) -> str:
    if exitcode < 0:
        return signal.strsignal(-exitcode) or f"signal {-exitcode}"
    return f"exit code {exitcode % EXIT_ZERO}"


def serve(connection_descriptor: int) -> None:
    """Score each `RowsByFunction` message until None or the end of the connection.

    Receives a `PoolPlan` first and answers with `Ready`, or the error.
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
            connection.send(pool.ready)
            for rows in _requests(connection):
                outcomes = pool.score(rows)
                os.kill(guard_pid, SWEEP)  # no call is running: remaining processes are leftovers
                connection.send(outcomes)


def _requests(connection: Connection) -> Iterator[RowsByFunction]:
    with suppress(EOFError, ConnectionResetError):  # the caller has ended
        yield from iter(connection.recv, None)
