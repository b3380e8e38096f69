"""A worker that dies in any phase of a step ends the run, and nothing stays behind."""

import contextlib
import re
import time
from pathlib import Path

import pytest
from program import Program, gone, start_program

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

SHARED_MEMORY = Path("/dev/shm")
ONE_WORKER = (
    "rl_config.actor_resource.num_npus=1",
    "rl_config.init_kl_coef=0.001",
    # A phase more.
    "rl_config.old_log_probs=recompute",
    "megatron_training.test_data_path=null",
    "rl_config.test_freq=0",
    # Long enough for whoever is killed last.
    "megatron_training.train_iters=200",
)


PLACES = (
    ("swap to rollout begins", "generate_sequences"),
    ("phase rollout begins", "generate_sequences"),
    ("swap to reference begins", "compute_ref_log_prob"),
    ("phase forward begins", "compute_log_prob"),
    ("phase train begins", "update"),
)


@pytest.mark.parametrize("places", [PLACES[:2], PLACES[2:]], ids=["rollout", "behind"])
def test_a_worker_killed_in_a_phase_ends_the_run_within_30_seconds_and_says_where(
    places: tuple[tuple[str, str], ...], tiny_model: Path, tmp_path: Path
) -> None:
    before = set(SHARED_MEMORY.iterdir())
    # Side by side: most of a start is waiting.
    programs = [
        start_program(tmp_path / f"run{at}", [f"actor_config.load={tiny_model}", *ONE_WORKER])
        for at in range(len(places))
    ]
    for program, (line, call) in zip(programs, places, strict=True):
        kill_and_look(program, line, call)
    assert orphans(set(SHARED_MEMORY.iterdir()) - before) == []


def kill_and_look(program: Program, line: str, call: str) -> None:
    # The first step has been through everything once; a later one is to be hurt.
    program.wait_for_steps(1)
    started = program.descendants()
    (worker,) = program.workers()
    wait_for_line(program, program.folder / "logs" / "worker_0.log", line)
    worker.kill()
    killed = time.monotonic()

    assert program.process.wait(timeout=60) == 1
    assert time.monotonic() - killed < 30
    assert gone(started, timeout_seconds=10)
    text = program.text()
    assert re.search(rf"worker-0 \(rank 0, process {worker.pid} on [^)]*\) died", text), text
    assert f"during: {call}" in text
    # What the worker said last; a swap is over soon, so the kill may land just behind it.
    assert line in text
    assert program.summary()["status"] == "failed"


def orphans(segments: set[Path]) -> list[Path]:
    """Return shared memory that no living process looks into: others' programs have theirs."""
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            mapped += maps.read_text()
    return sorted(each for each in segments if each.exists() and str(each) not in mapped)


def wait_for_line(program: Program, log: Path, line: str) -> None:
    """Return as soon as a new line of a log holds some words."""
    with log.open() as file:
        file.seek(0, 2)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if line in file.readline():
                return
            assert program.process.poll() is None, program.text()
            time.sleep(0.0005)
    raise AssertionError(f"no new line with {line!r}:\n{program.text()}")
