"""What runs inside a scoring process: isolation first, then foreign code on foreign text."""

import math
import numbers
import os
import resource
import time
import traceback
from functools import cache

import psutil

import mindrl.rewards.answers  # noqa: F401 - before the fork: no answer is to wait for sympy
from mindrl.observability.units import quoted
from mindrl.platform.guard import die_with
from mindrl.rewards.resolve import place_of, resolve_reward
from mindrl.rewards.scores import Failure, Outcome, Pairs

EXTRA_ADDRESS_SPACE_BYTES = 4 * 2**30
"""What scoring may map beyond what the imports have mapped."""

SETTLING_SECONDS = 0.02
"""Lets the pool note which worker took a task that may kill it; else its death may be seen before
its task is known, and be blamed on the whole pool."""
TRACED_CALLS = 8
"""The innermost ones."""
TRACE_CHARACTERS = 2000

load_reward = cache(resolve_reward)
"""Filled by the service before it forks, so that a replaced worker imports nothing."""


@cache
def reward_place(function: str) -> str:
    """Return file and line of a function; also filled by the service."""
    return place_of(load_reward(function))


def isolate_worker(service_pid: int, connection_descriptor: int) -> None:
    """Cut a new worker off from what it could harm; runs once in each, before any response."""
    die_with(service_pid)
    os.close(connection_descriptor)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os.close(silence)
    limit_bytes = psutil.Process().memory_info().vms + EXTRA_ADDRESS_SPACE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def score_pairs(function: str, pairs: Pairs, budget_seconds: float) -> list[Outcome]:
    """Score pairs until the budget is spent, but one at least.

    The caller sends the rest again, so that slow functions are not mistaken for hanging ones. A
    pair alone is mostly one of those that were lost: this process may not survive it.
    """
    if len(pairs) == 1:
        time.sleep(SETTLING_SECONDS)
    started = time.monotonic()
    outcomes: list[Outcome] = []
    for response, answer in pairs:
        outcomes.append(_score_one(function, response, answer))
        if time.monotonic() - started > budget_seconds:
            break
    return outcomes


def _score_one(function: str, response: str, answer: str) -> Outcome:
    try:
        value: object = load_reward(function)(response, answer)
        if isinstance(value, numbers.Real) and math.isfinite(value):
            return float(value)
        detail = f"returned {quoted(value)}; need a finite number ({reward_place(function)})"
        return Failure(kind="value", detail=detail)
    except BaseException as error:  # noqa: BLE001 - SystemExit of a reward must not end the worker
        return _raised(function, error)


def _raised(function: str, error: BaseException) -> Failure:
    """Tell of an exception by the innermost line of the function's own file."""
    place = reward_place(function)
    file = place.rpartition(":")[0]
    calls = traceback.extract_tb(error.__traceback__)[1:]  # the first one is of this file
    lines = [f"{call.filename}:{call.lineno}" for call in calls if call.filename == file]
    message = quoted(traceback.format_exception_only(error)[-1].strip())
    return Failure(
        kind="exception",
        detail=f"{message} ({[place, *lines][-1]})",
        trace="".join(traceback.format_list(calls[-TRACED_CALLS:]))[-TRACE_CHARACTERS:],
    )
