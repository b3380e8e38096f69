"""Random kills of environments, workers and driver of a run with a tool change no bit of it."""

import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from program import Program
from test_tools_run import SHORT, ended, of_results, run, tool_user

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(5400)]
__all__ = ["tool_user"]

SEED = 7
VICTIMS = ["environment"] * 12 + ["worker"] * 4 + ["driver"] * 4
STEPS = 8
MORE = (*SHORT, f"megatron_training.train_iters={STEPS}", "rl_config.max_restarts=100")
# These count what has happened, not what was learned.
COUNTS = ("turns/lost_processes", "resilience/")


def environments(program: Program) -> list[psutil.Process]:
    """Return the processes that each have a conversation."""
    below = program.descendants()
    lines = {each.pid: tuple(_line(each)) for each in below}
    forks = [each for each in below if "mindrl.environments.process" in " ".join(lines[each.pid])]
    # A guard and the process that forks the others have the same line.
    return [each for each in forks if lines.get(_parent(_parent(each.pid))) == lines[each.pid]]


def _line(process: psutil.Process) -> Sequence[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return ()


def _parent(pid: int) -> int:
    with suppress(psutil.Error):
        return psutil.Process(pid).ppid()
    return 0


def killed(program: Program, kind: str, rng: random.Random) -> bool:
    """Kill a process of a kind; return whether there was one."""
    if kind == "driver":
        program.process.send_signal(signal.SIGKILL)
        program.process.wait(timeout=60)
        return True
    found = environments(program) if kind == "environment" else program.workers()
    if not found:
        return False
    with suppress(psutil.Error):
        rng.choice(found).kill()
        return True
    return False


def test_random_kills_change_nothing_that_is_learned(tool_user: Path, tmp_path: Path) -> None:
    straight = ended(run(tmp_path / "straight", tool_user, *MORE))
    rng, count = random.Random(SEED), Counter[str]()
    left = rng.sample(VICTIMS, len(VICTIMS))
    folder = tmp_path / "killed"
    program = run(folder, tool_user, *MORE)
    while left:
        if program.process.poll() is not None:
            program = run(folder, tool_user, *MORE)
        # At most a few at a time, so that the run gets on between them.
        done = len(program.steps())
        time.sleep(rng.uniform(0.5, 4.0))
        due = len(VICTIMS) - len(left) < (done + 1) * len(VICTIMS) / STEPS
        if due and killed(program, left[-1], rng):
            count[left.pop()] += 1
    if program.process.poll() is not None:
        program = run(folder, tool_user, *MORE)
    resumed = ended(program)
    assert count == Counter(VICTIMS)
    results = [
        [
            {name: value for name, value in step.items() if not name.startswith(COUNTS)}
            for step in of_results(each)
        ]
        for each in (straight, resumed)
    ]
    assert results[0] == results[1]
