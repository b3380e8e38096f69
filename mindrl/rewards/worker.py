"""Content of a scoring process: isolation first, then user code on untrusted text."""

import asyncio
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import cast

import psutil

import mindrl.rewards.answers  # noqa: F401 - before the fork, so that no answer waits for sympy
from mindrl.config.reward_signature import RewardSignature
from mindrl.errors import ConfigError
from mindrl.observability.units import quoted
from mindrl.platform.guard import die_with
from mindrl.rewards.remote import RemoteReward
from mindrl.rewards.resolve import FIELD, place_of, resolve_reward, signature_of_reward
from mindrl.rewards.returned import hint_of, score_of, scores_of
from mindrl.rewards.scores import ArgumentRows, Failure, NamedReward, Outcome

EXTRA_ADDRESS_SPACE_BYTES = 4 * 2**30
"""Address space for scoring, beyond that of the imports."""

SETTLING_SECONDS = 0.02
"""Lets the pool record which worker has a task that may kill it; otherwise its death may be noticed
before its task is known, and break the whole pool."""
TRACED_CALLS = 8
"""Number of innermost calls in a trace."""
TRACE_CHARACTERS = 2000

MAX_CONCURRENT = 8
"""Maximum concurrent calls of an `async def` in one process, unless its attribute `concurrency` is
set."""


@dataclass(frozen=True, kw_only=True)
class LoadedReward:
    """A function as called by a worker."""

    call: Callable[..., object]
    signature: RewardSignature
    taken: tuple[tuple[str, str], ...]
    """Field by parameter; an empty name is a positional parameter."""
    place: str
    """File and line."""

    @property
    def concurrency(self) -> int:
        """Maximum number of concurrent calls."""
        alone = self.signature.is_batch or not self.signature.is_async
        return 1 if alone else int(getattr(self.call, "concurrency", MAX_CONCURRENT))

    def called(self, values: Iterable[object]) -> object:
        """Call it with its fields, in that order."""
        pairs = [*zip(self.taken, values, strict=True)]
        by_place = [value for (name, _), value in pairs if not name]
        return self.call(*by_place, **{name: value for (name, _), value in pairs if name})


@cache
def load_reward(reward: NamedReward) -> LoadedReward:
    """Import a function; the service fills the cache before it forks.

    Raises:
        ConfigError: It is not usable.
    """
    call = resolve_reward(reward.name, kwargs=json.loads(reward.kwargs))
    signature = signature_of_reward(call)
    try:
        taken = signature.bound(reward.columns, reward.answer_column)
    except ValueError as error:
        raise ConfigError(f"{FIELD}={reward.name!r} ({place_of(call)}) {error}") from error
    place = reward.name if isinstance(call, RemoteReward) else place_of(call)
    return LoadedReward(call=call, signature=signature, taken=taken, place=place)


def isolate_worker(service_pid: int, connection_descriptor: int, prints_descriptor: int) -> None:
    """Isolate a new worker; runs once in each, before any response."""
    die_with(service_pid)
    os.close(connection_descriptor)
    for descriptor in (1, 2):
        os.dup2(prints_descriptor, descriptor)
    # Line-buffered: a worker is ended by a signal, which would lose buffered lines.
    sys.stdout, sys.stderr = (
        os.fdopen(descriptor, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
        for descriptor in (1, 2)
    )
    limit_bytes = psutil.Process().memory_info().vms + EXTRA_ADDRESS_SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def score_rows(
    reward: NamedReward, rows: ArgumentRows, timeout_seconds: float
) -> list[Outcome] | Failure:
    """Score responses in order until half the time limit of one has passed, at least one.

    The caller sends the rest again, so that slow functions do not count as hung. A single response
    often retries a lost one, which this process may not survive.

    Returns:
        Outcomes of the first responses, or why a function of lists has none.
    """
    if len(rows) == 1:
        time.sleep(SETTLING_SECONDS)
    loaded = load_reward(reward)
    if loaded.signature.is_batch:
        return _score_batch(loaded, rows)
    if loaded.signature.is_async:
        return asyncio.run(_score_concurrently(loaded, rows, timeout_seconds))
    started = time.monotonic()
    outcomes: list[Outcome] = []
    for row in rows:
        outcomes.append(_score_one(loaded, row))
        if time.monotonic() - started > timeout_seconds / 2:
            break
    return outcomes


def _score_one(loaded: LoadedReward, row: Sequence[object]) -> Outcome:
    try:
        return _score(loaded, loaded.called(row))
    except BaseException as error:  # noqa: BLE001 - SystemExit of a reward must not end the worker
        return _raised(loaded, error)


async def _score_concurrently(
    loaded: LoadedReward, rows: ArgumentRows, timeout_seconds: float
) -> list[Outcome]:
    """Score responses concurrently, each within the time limit of one."""
    slots = asyncio.Semaphore(loaded.concurrency)
    # Python's default has a few threads more than the machine has cores; others would wait.
    threads = ThreadPoolExecutor(loaded.concurrency)
    asyncio.get_running_loop().set_default_executor(threads)

    async def score(row: Sequence[object]) -> Outcome:
        async with slots:
            try:
                async with asyncio.timeout(timeout_seconds) as limit:
                    return _score(loaded, await cast(Awaitable[object], loaded.called(row)))
            except BaseException as error:  # noqa: BLE001 - as above
                if limit.expired():
                    detail = f"no score within {timeout_seconds:g} s ({loaded.place})"
                    return Failure(kind="timeout", detail=detail)
                return _raised(loaded, error)

    return [*await asyncio.gather(*map(score, rows))]


def _score_batch(loaded: LoadedReward, rows: ArgumentRows) -> list[Outcome] | Failure:
    """Score responses with one call.

    Returns a failure if it raises, or returns no list of equally many scores: the caller then
    retries the responses one by one.
    """
    try:
        value = loaded.called([list(column) for column in zip(*rows, strict=True)])
        if loaded.signature.is_async:
            value = asyncio.run(_awaited(cast(Awaitable[object], value)))
        try:
            found = scores_of(value, len(rows))
        except ValueError as error:
            return _no_score(loaded, error, value)
        # None: it does not apply to that response.
        return [None if each is None else _score(loaded, each) for each in found]
    except BaseException as error:  # noqa: BLE001 - as above
        return _raised(loaded, error)


async def _awaited(value: Awaitable[object]) -> object:
    return await value


def _score(loaded: LoadedReward, value: object) -> Outcome:
    try:
        return score_of(value)
    except ValueError as error:
        return _no_score(loaded, error, value)


def _no_score(loaded: LoadedReward, error: ValueError, value: object) -> Failure:
    hint = hint_of(value, is_batch=loaded.signature.is_batch)
    return Failure(kind="value", detail=f"{error} ({loaded.place}){hint}")


def _raised(loaded: LoadedReward, error: BaseException) -> Failure:
    """Return a failure for an exception, with the innermost line of the function's own file."""
    file = loaded.place.rpartition(":")[0]
    tb = traceback.extract_tb(error.__traceback__)
    calls = [call for call in tb if call.filename != __file__]
    lines = [f"{call.filename}:{call.lineno}" for call in calls if call.filename == file]
    message = quoted(traceback.format_exception_only(error)[-1].strip())
    return Failure(
        kind="exception",
        detail=f"{message} ({[loaded.place, *lines][-1]})",
        trace="".join(traceback.format_list(calls[-TRACED_CALLS:]))[-TRACE_CHARACTERS:],
    )
