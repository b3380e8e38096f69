"""Trackers that work, fail, hang and are slow, each in its own process, reading a run's log."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from mindrl.observability.console import StepConsole
from mindrl.observability.trackers import JsonlTracker
from mindrl.report.live_page import LivePage
from mindrl.tracking.job import TrackerJob, TrackerState
from mindrl.tracking.process import ProcessTracker
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary

USER = Path(__file__).with_name("user_trackers.py")
STEP = {"rollout/response_tokens": 1.0, "seconds/step": 1.0}


def started(root: Path, name: str, *, seconds: int = 60, goes_on: bool = False) -> ProcessTracker:
    job = TrackerJob(
        name=f"{USER}:{name}",
        project="mindrl",
        experiment="one",
        offline=True,
        timeout_seconds=seconds,
        goes_on=goes_on,
        folder=str(root / "trackers" / name),
        metrics=str(root / "metrics.jsonl"),
        config={"megatron_training.seed": 1},
    )
    return ProcessTracker(job, root / "logs" / f"tracker_{name}.log")


def run_log(root: Path, shown: io.StringIO, *names: str, seconds: int = 60) -> RunLog:
    folder = RunFolder(root)
    files = [JsonlTracker(folder.metrics)]
    summary = RunSummary(exports={"actor": root / "model"})
    others = [started(root, name, seconds=seconds) for name in names]
    return RunLog(folder, summary, StepConsole(9, shown), [*files, *others])


def until(happens: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


def trackers_of(summary: dict[str, object]) -> dict[str, dict[str, object]]:
    found = summary["trackers"]
    assert isinstance(found, dict)
    return {name.rpartition(":")[2]: outcome for name, outcome in found.items()}


def kept(root: Path, name: str) -> list[str]:
    return (root / "trackers" / name / "kept.txt").read_text("utf-8").splitlines()


def test_two_trackers_take_each_step_and_evaluation_and_the_summary_says_where(
    tmp_path: Path,
) -> None:
    shown = io.StringIO()
    log = run_log(tmp_path, shown, "FileTracker", "Slow")
    for step in (1, 2):
        log.step(step, STEP | {"reward/mean": 0.5 * step, "update/loss": float("nan")}, [])
    log.evaluation_of("math", 2, {}, [])
    log.summary.status = "interrupted"
    outcomes = trackers_of(log.close())
    assert "tracker" not in shown.getvalue()
    for name in ("FileTracker", "Slow"):
        # What is not finite is left out.
        assert kept(tmp_path, name) == [
            f"run+ 1 {STEP | {'reward/mean': 0.5}}",
            f"run+ 2 {STEP | {'reward/mean': 1.0}}",
            "run+ 2 {}",
            "run+ -1 {}",
        ]
        assert TrackerState.of(str(tmp_path / "trackers" / name)).run_status == "interrupted"
        assert outcomes[name] == {
            "place": f"{tmp_path}/trackers/{name}/kept.txt",
            "kept": 3,
            "missed": 0,
            "problem": None,
        }


def test_a_tracker_knows_how_its_run_ended_and_finds_the_page_of_the_whole_run(
    tmp_path: Path,
) -> None:
    log = run_log(tmp_path, io.StringIO(), "SeesTheEnd")
    log.trackers = [*log.trackers, LivePage(tmp_path)]
    log.step(1, STEP, [])
    log.summary.status = "stopped"
    record = log.close()
    assert trackers_of(record)["SeesTheEnd"]["problem"] is None
    assert kept(tmp_path, "SeesTheEnd") == ["stopped True"]
    # What became of the tracker is in the summary too, which is written after it.
    assert json.loads((tmp_path / "summary.json").read_text())["trackers"] == record["trackers"]


def test_one_that_raises_is_told_once_in_safe_words_and_the_others_go_on(tmp_path: Path) -> None:
    shown = io.StringIO()
    log = run_log(tmp_path, shown, "Raises", "FileTracker")
    log.step(1, STEP, [])
    log.step(2, STEP, [])
    raises = log.trackers[1]
    assert isinstance(raises, ProcessTracker)
    until(lambda: raises.process.poll() is not None)
    for step in range(3, 6):
        log.step(step, STEP, [])
    outcomes = trackers_of(log.close())
    problem = (
        f"the tracker {USER}:Raises has failed: RuntimeError: quota \\x1b[2J exceeded; "
        f"see {tmp_path}/logs/tracker_Raises.log"
    )
    told = [line for line in shown.getvalue().splitlines() if "warning" in line]
    assert told == [f"warning: {problem}; the run continues without it"]
    assert outcomes["Raises"] == {
        "place": f"{tmp_path}/trackers/Raises/kept.txt",
        "kept": 1,
        "missed": 4,
        "problem": problem,
    }
    assert outcomes["FileTracker"]["kept"] == 5
    assert "Traceback" in (tmp_path / "logs" / "tracker_Raises.log").read_text("utf-8")


def test_one_that_hangs_in_a_step_costs_the_run_nothing_and_is_told_once(tmp_path: Path) -> None:
    shown = io.StringIO()
    log = run_log(tmp_path, shown, "Hangs", seconds=5)
    hangs = log.trackers[1]
    assert isinstance(hangs, ProcessTracker)
    slowest, step = 0.0, 0

    def one_more_step() -> bool:
        nonlocal slowest, step
        step += 1
        begun = time.monotonic()
        log.step(step, STEP, [])
        slowest = max(slowest, time.monotonic() - begun)
        return hangs in log.left_out

    until(one_more_step)
    begun = time.monotonic()
    outcome = trackers_of(log.close())["Hangs"]
    assert slowest < 2.0
    assert time.monotonic() - begun < 2.0
    problem = (
        f"the tracker {USER}:Hangs has not responded for 5 s (rl_config.tracking.timeout_seconds); "
        f"see {tmp_path}/logs/tracker_Hangs.log"
    )
    assert shown.getvalue().count("has not responded") == 1
    assert (outcome["kept"], outcome["missed"], outcome["problem"]) == (0, step, problem)


def test_one_that_hangs_at_the_end_costs_the_run_its_limit_once(tmp_path: Path) -> None:
    shown = io.StringIO()
    log = run_log(tmp_path, shown, "HangsAtTheEnd", seconds=5)
    log.step(1, STEP, [])
    until(lambda: TrackerState.of(str(tmp_path / "trackers" / "HangsAtTheEnd")).taken == 1)
    begun = time.monotonic()
    outcome = trackers_of(log.close())["HangsAtTheEnd"]
    assert 4.0 < time.monotonic() - begun < 10.0
    assert (outcome["kept"], outcome["missed"]) == (1, 0)
    assert "had not received 0 record(s) 5 s" in shown.getvalue()


def test_a_slow_one_holds_up_no_step_and_what_it_lacks_at_the_end_is_counted(
    tmp_path: Path,
) -> None:
    shown = io.StringIO()
    log = run_log(tmp_path, shown, "Slow", seconds=5)
    begun = time.monotonic()
    for step in range(1, 101):
        log.step(step, STEP, [])
    assert time.monotonic() - begun < 10.0  # it needs 40 s
    begun = time.monotonic()
    outcome = trackers_of(log.close())["Slow"]
    assert time.monotonic() - begun < 10.0
    taken, missed = outcome["kept"], outcome["missed"]
    assert isinstance(taken, int)
    assert isinstance(missed, int)
    assert 0 <= taken <= 40
    assert taken + missed == 100
    assert shown.getvalue().count(f"had not received {missed} record(s) 5 s") == 1


@pytest.mark.parametrize("name", ["Dies", "Leaves"])
def test_a_process_that_is_gone_without_a_word_is_told_too(name: str, tmp_path: Path) -> None:
    shown = io.StringIO()
    log = run_log(tmp_path, shown, name)
    log.step(1, STEP, [])
    outcome = trackers_of(log.close())[name]
    assert (outcome["kept"], outcome["missed"]) == (0, 1)
    assert str(outcome["problem"]).startswith(f"the tracker {USER}:{name} has failed: ")
    assert shown.getvalue().count("the tracker") == 1


def test_a_run_that_goes_on_tells_the_same_run_there_what_it_has_not_heard(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"

    def session(first: int, last: int, *, goes_on: bool) -> None:
        lines = [json.dumps({"step": step, "reward/mean": 1.0}) for step in range(1, last + 1)]
        # As a run does that goes on behind a checkpoint: what is behind that is cut off.
        metrics.write_text("".join(f"{line}\n" for line in lines[: first - 1]))
        tracker = started(tmp_path, "FileTracker", goes_on=goes_on)
        with metrics.open("a") as file:
            file.writelines(f"{line}\n" for line in lines[first - 1 :])
        tracker.close()

    session(1, 4, goes_on=False)
    session(3, 6, goes_on=True)
    steps = [line.split()[:2] for line in kept(tmp_path, "FileTracker")]
    assert steps == [
        *(["run+", str(step)] for step in (1, 2, 3, 4, -1)),
        *(["run++", str(step)] for step in (5, 6, -1)),
    ]
    session(1, 1, goes_on=False)
    assert [line.split()[:2] for line in kept(tmp_path, "FileTracker")][8:] == [
        ["run+", "1"],
        ["run+", "-1"],
    ]


def test_a_state_with_a_key_of_another_version_is_read(tmp_path: Path) -> None:
    state = TrackerState(id="7", step=2)
    (tmp_path / "state.json").write_text(json.dumps(asdict(state) | {"novel": 1}), "utf-8")
    assert TrackerState.of(str(tmp_path)) == state


def test_a_tracker_waits_for_the_one_of_a_run_that_was_killed(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n')
    old = started(tmp_path, "HangsAtTheEnd", seconds=5)
    until(lambda: TrackerState.of(old.job.folder).taken == 1)
    assert old.process.stdin is not None
    old.process.stdin.close()
    new = started(tmp_path, "HangsAtTheEnd", seconds=60, goes_on=True)
    with metrics.open("a") as file:
        file.write('{"step": 2}\n')
    until(lambda: TrackerState.of(old.job.folder).step == 2)
    assert old.process.wait(30) == -signal.SIGALRM
    assert [line.split()[:2] for line in kept(tmp_path, "HangsAtTheEnd")] == [
        ["run+", "1"],
        ["run++", "2"],
    ]
    new.process.kill()
    new.process.wait()


@pytest.mark.parametrize("name", ["FileTracker", "HangsAtTheEnd"])
def test_the_process_of_a_tracker_ends_with_a_run_that_is_killed(name: str, tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[3])\n"
        "from test_process import STEP, run_log, started\n"
        "import io\n"
        "log = run_log(Path(sys.argv[1]), io.StringIO(), sys.argv[2], seconds=5)\n"
        "log.step(1, STEP, [])\n"
        "print(log.trackers[1].process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path), name, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        tracker = int(run.stdout.readline())
        run.send_signal(signal.SIGKILL)
    until(lambda: not Path(f"/proc/{tracker}").exists() or _is_dead(tracker), seconds=60)
    assert TrackerState.of(str(tmp_path / "trackers" / name)).run_status == "killed"
    # What was on the disk when the run was killed is told all the same.
    assert kept(tmp_path, name)[0].split()[1] == "1"


def _is_dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "Z" in Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
