"""A run that is disturbed in any phase, by whatever ends a process, comes to the same end.

The tables of `make faults`; each prints what it measured (docs/reference/results.md).
"""

import json
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from disturbances import (
    CRITIC_PHASES,
    DRIVER,
    PHASES,
    WORKERS,
    Disturbance,
    disturbance,
    environment,
    witnesses,
)
from program import Program, gone, start_program
from test_killed_in_phases import SHARED_MEMORY, orphans
from test_resume import outcome, resume

from mindrl.checkpoint.commits import Commits

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(5400)]

Straight = Mapping[tuple[int, str], Mapping[str, Any]]
"""What runs come to, by their steps and program."""
WORKERS_CALL = [phase for phase, (caller, _) in PHASES.items() if caller == "worker"]
COMMON = (
    "megatron_training.save_interval=1",
    "megatron_training.keep_rollouts=3",
    "rl_config.max_restarts=100",
    "rl_config.test_freq=0",
    # A reference, whose log-probs are a phase too.
    "rl_config.init_kl_coef=0.001",
)
AT_WORK = [
    disturbance(phase, victim, kind)
    for kind in ("exit", "segfault", "exception")
    for phase in WORKERS_CALL
    for victim in WORKERS
]
KILLED, TERMINATED = (
    [disturbance(phase, victim, kind) for phase in PHASES for victim in WORKERS]
    for kind in ("SIGKILL", "SIGTERM")
)
WITH_CRITIC = [
    disturbance(phase, victim, "SIGKILL") for phase in CRITIC_PHASES for victim in WORKERS
]


@pytest.fixture(scope="module")
def straight(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """Return what runs come to that nothing happens to, by steps and program, once asked for."""
    folder = tmp_path_factory.mktemp("straight")

    class Outcomes(dict[tuple[int, str], dict[str, Any]]):
        def __missing__(self, key: tuple[int, str]) -> dict[str, Any]:
            steps, name = key
            asked = overrides(tiny_model, steps)
            program = start_program(folder / f"{name}-{steps}", asked, program=name)
            assert program.process.wait(timeout=1800) == 0, program.text()
            self[key] = outcome(program.folder)
            return self[key]

    return Outcomes()


def overrides(model: Path, steps: int) -> list[str]:
    return [f"actor_config.load={model}", f"megatron_training.train_iters={steps}", *COMMON]


@pytest.mark.parametrize(
    ("planned", "steps", "name"),
    [
        pytest.param(KILLED, 60, "train_grpo", id="killed"),
        pytest.param(TERMINATED, 60, "train_grpo", id="terminated"),
        pytest.param(AT_WORK, 90, "train_grpo", id="at work"),
        pytest.param(WITH_CRITIC, 20, "train_ppo", id="with a critic"),
    ],
)
def test_workers_that_end_in_any_phase_leave_no_trace_in_what_is_learned(
    planned: list[Disturbance],
    steps: int,
    name: str,
    straight: Straight,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    around = environment(tmp_path / "disturbed", planned)
    asked = overrides(tiny_model, steps)
    program = start_program(tmp_path / "run", asked, around, program=name)
    assert program.process.wait(timeout=5000) == 0, program.text()
    happened = witnesses(tmp_path / "disturbed")
    assert len(happened) == len(planned)
    rows = table(program, happened)
    print(*rows, sep="\n")
    assert program.summary()["restarts"] == len(planned)
    assert outcome(program.folder) == straight[steps, name]


def test_a_long_run_with_a_fault_every_few_steps_learns_what_an_undisturbed_one_does(
    straight: Straight, tiny_model: Path, tmp_path: Path
) -> None:
    steps = int(os.environ.get("MINDRL_SOAK_STEPS", "300"))
    around = environment(tmp_path / "disturbed", at_random(steps // 10, seed=14))
    asked = [*overrides(tiny_model, steps), "rl_config.heartbeat_timeout_seconds=5"]
    program = start_program(tmp_path / "run", asked, around)
    assert program.process.wait(timeout=5000) == 0, program.text()
    fired = len(witnesses(tmp_path / "disturbed"))
    assert fired >= 0.8 * steps // 10
    assert program.summary()["restarts"] == fired
    lines = program.steps()
    useful = sum(line["seconds/step"] for line in lines)
    starts = sum(line.get("seconds/start", 0.0) for line in lines)
    wall = program.summary()["seconds"]
    print(
        f"{steps} steps, {fired} faults: {wall:.0f} s, of these {useful:.0f} s in steps that stayed"
    )
    print(
        f"{starts:.0f} s in {fired + 1} starts; without them {useful / (wall - starts):.1%} useful"
    )
    assert outcome(program.folder) == straight[steps, "train_grpo"]


def at_random(count: int, seed: int) -> list[Disturbance]:
    """Draw faults of all kinds in all phases, on average every tenth step."""
    draw = random.Random(seed)
    kinds = ("SIGKILL", "SIGSTOP", "exception", "segfault")
    return [
        disturbance(
            draw.choice(WORKERS_CALL),
            draw.choice(WORKERS),
            draw.choice(kinds),
            call=draw.randint(7, 13),
        )
        for _ in range(count)
    ]


def table(program: Program, happened: Sequence[dict[str, Any]]) -> list[str]:
    """Return a row of Markdown for each fault: seconds to see it, and to train again."""
    faults = [
        json.loads(line)
        for line in (program.folder / "faults.jsonl").read_text().split("\n")
        if line
    ]
    phases = {at: phase for phase, (_, at) in {**PHASES, **CRITIC_PHASES}.items()}
    rows = []
    for number, each in enumerate(happened):
        found = faults[number]
        assert str(each["pid"]) in found["error"], (each, found)
        seen = found["time"] - each["time"]
        assert seen < 10, (each, found)
        rows.append(f"| {phases[each['at']]} | {each['victim']} | {each['kind']} | {seen:.1f} |")
    starts = [line["seconds/start"] for line in program.steps() if "seconds/start" in line]
    return [*rows, f"seconds until training: {', '.join(f'{each:.0f}' for each in starts)}"]


def test_a_driver_that_is_killed_in_any_phase_is_started_again_and_leaves_nothing(
    straight: Straight, tiny_model: Path, tmp_path: Path
) -> None:
    # The checkpoint of the first step may still be written when the second begins.
    calls = {phase: 2 if number else 3 for number, phase in enumerate(PHASES)}
    planned = [disturbance(phase, DRIVER, "SIGKILL", call=call) for phase, call in calls.items()]
    around = environment(tmp_path / "disturbed", planned)
    steps, remains = len(planned) + 5, Remains()
    program = start_program(tmp_path / "run", overrides(tiny_model, steps), around)
    for number in range(len(planned)):
        assert remains.code_of(program) == -signal.SIGKILL, program.text()
        assert len(witnesses(tmp_path / "disturbed")) == number + 1
        program = resume(program.folder, "train_grpo", around)
    assert remains.code_of(program) == 0, program.text()
    remains.look()
    assert outcome(program.folder) == straight[steps, "train_grpo"]


class Remains:
    """What ended programs have left: nothing of ours, and of Ray's only what ends by itself."""

    def __init__(self) -> None:
        self.segments = set(SHARED_MEMORY.iterdir())
        self.seen: set[psutil.Process] = set()

    def code_of(self, program: Program) -> int:
        """Wait for a program, whose workers end with it; returns its exit code."""
        workers: set[psutil.Process] = set()
        while program.process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                self.seen |= set(program.descendants())
                workers |= set(program.workers())
            time.sleep(0.2)
        assert gone([*workers], timeout_seconds=10), workers
        return program.process.wait()

    def look(self) -> None:
        """See that nothing is left; Ray's agents look for a Ray that is gone for a minute."""
        assert gone([*self.seen], timeout_seconds=100), self.seen
        assert orphans(set(SHARED_MEMORY.iterdir()) - self.segments) == []


@pytest.mark.parametrize("kind", ["SIGTERM", "SIGINT"])
def test_a_run_that_is_asked_to_stop_in_any_phase_leaves_a_checkpoint_of_its_last_step(
    kind: str, straight: Straight, tiny_model: Path, tmp_path: Path
) -> None:
    # A second signal would end the run at once.
    planned = [replace(disturbance(phase, DRIVER, kind, call=2), anew=True) for phase in PHASES]
    around = environment(tmp_path / "disturbed", planned)
    steps, remains = 2 * len(planned) + 4, Remains()
    program = start_program(tmp_path / "run", overrides(tiny_model, steps), around)
    for number in range(len(planned)):
        assert remains.code_of(program) == 130, program.text()
        took = time.time() - witnesses(tmp_path / "disturbed")[number]["time"]
        print(f"| {[*PHASES][number]} | {kind} | {took:.1f} |")
        assert took < 30
        newest = max(Commits(program.folder / "checkpoints").steps())
        assert newest == len(program.steps())
        program = resume(program.folder, "train_grpo", around)
    assert remains.code_of(program) == 0, program.text()
    remains.look()
    assert outcome(program.folder) == straight[steps, "train_grpo"]
