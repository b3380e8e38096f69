"""Start and observe the real programs: Ray, Megatron-core, vLLM, Hydra and rewards together."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

CHECKOUT = Path(__file__).parents[2]
DATA = CHECKOUT / ".cache/tiny/data"
MODEL = CHECKOUT / ".cache/tiny/model"
STEPS = 5
KEEPS = (
    "megatron_training.save_interval=2",
    f"megatron_training.keep_rollouts={STEPS}",
    f"megatron_training.train_iters={STEPS}",
)
"""Overrides of a run that can be resumed and repeated."""
TEN_STEPS = (
    "megatron_training.train_iters=10",
    # As evaluations, checkpoints change what a step copies; most steps have none.
    "megatron_training.save_interval=5",
    "megatron_training.keep_rollouts=10",
    "rl_config.test_freq=5",
)
"""Overrides of one that also learns, and is evaluated after half of its steps."""
ENTRIES = "entries"
"""Folder next to a run's folder in which each process records when it plans."""
STARTED: list["Program"] = []
"""All programs started by these tests."""


@dataclass(frozen=True)
class Program:
    """A started training program."""

    process: subprocess.Popen[str]
    folder: Path
    output: Path

    def descendants(self) -> list[psutil.Process]:
        """Return all descendants of the program, including those in other sessions."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes in the order of their start."""
        return workers_below(self.process.pid)

    def wait_for_steps(self, count: int, timeout_seconds: float = 600) -> None:
        """Wait until the number of steps is recorded."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if len(self.steps()) >= count:
                return
            assert self.process.poll() is None, self.text()
            time.sleep(0.1)
        raise AssertionError(f"no step {count} in {timeout_seconds} s:\n{self.text()}")

    def wait_for_line(self, words: str, timeout_seconds: float = 600) -> None:
        """Wait until the program prints a text."""
        deadline = time.monotonic() + timeout_seconds
        while words not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, f"no {words!r}:\n{self.text()}"
            time.sleep(0.1)

    def steps(self) -> list[dict[str, Any]]:
        """Return the metrics of the steps so far."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [line for line in lines if "rollout/response_tokens" in line]

    def evaluations(self, step: int) -> list[dict[str, Any]]:
        """Return the answers to the held-out prompts after a step."""
        lines = (self.folder / "evaluations.jsonl").read_text().splitlines()
        return [row for row in map(json.loads, lines) if row["step"] == step]

    def text(self) -> str:
        """Return the output of the program."""
        return self.output.read_text()

    def summary(self) -> dict[str, Any]:
        """Return the summary of the run."""
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary


@contextmanager
def one_core() -> Iterator[None]:
    """Start drivers on one core: their workers, however many, have one thread each.

    With more threads a worker adds in another order.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def start_program(
    folder: Path,
    overrides: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    program: str = "train_grpo",
) -> Program:
    """Start a program of cli/ with overrides in a run folder."""
    output = folder.with_suffix(".txt")
    command = [sys.executable, f"cli/{program}.py", *overrides, f"hydra.run.dir={folder}"]
    with output.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"COLUMNS": "200"} | dict(environment or {}),
            start_new_session=True,
        )
    STARTED.append(Program(process=process, folder=folder, output=output))
    return STARTED[-1]


def end(program: Program) -> None:
    """Kill a program if it is running, and all its descendants."""
    if program.process.poll() is None:
        kill_all(family(program.process.pid))
        program.process.wait(timeout=60)


def kill_at_once(process: subprocess.Popen[Any]) -> None:
    """Kill a process and all its descendants, as a node that loses its power does."""
    everyone = family(process.pid)
    kill_all(everyone)
    process.wait(timeout=10)
    assert gone(everyone, timeout_seconds=10)


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """Kill processes, of which some may have ended since they were listed."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def piped(
    command: Sequence[str], environment: Mapping[str, str], folder: Path = CHECKOUT
) -> subprocess.Popen[str]:
    """Start any program; its output is read at its end."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True
    )


def fresh_answers(model: str, count: int) -> dict[str, list[str]]:
    """Answer the held-out prompts with a fresh vLLM, and the first ones with transformers."""
    script = Path(__file__).with_name("fresh_engine.py")
    done = subprocess.run(
        [sys.executable, str(script), model, str(DATA / "test.jsonl"), str(count)],
        env=os.environ
        | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "TORCH_COMPILE_DISABLE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    answers: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def workers_below(pid: int) -> list[psutil.Process]:
    """Return the worker processes among the descendants of a process, ordered by their start."""
    below = psutil.Process(pid).children(recursive=True)
    found = [each for each in below if "WorkerProcess" in " ".join(_words(each))]
    # Process ids start again at 1 when they run out.
    return sorted(found, key=lambda process: (process.create_time(), process.pid))


def named(name: str, pid: int) -> list[psutil.Process]:
    """Return the descendants of a process that run under a name."""
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if each.name() == name:
                found.append(each)
    return found


def listening(pid: int) -> set[tuple[str, int]]:
    """Return the addresses and ports at which a process or its descendants wait for TCP."""
    found = set()
    for each in family(pid):
        with suppress(psutil.NoSuchProcess):
            opened = each.net_connections(kind="tcp")
            found |= {(*at.laddr,) for at in opened if at.status == psutil.CONN_LISTEN}
    return found


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def gone(processes: Sequence[psutil.Process], timeout_seconds: float) -> bool:
    """Return whether all processes end within a time."""
    _, alive = psutil.wait_procs(processes, timeout=timeout_seconds)
    return not alive


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
