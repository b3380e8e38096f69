"""What is left of the scoring processes: nothing, whatever ended them."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import psutil
import pytest
from scorers import scorer_of

from mindrl.errors import RewardError
from mindrl.rewards.scores import Failure, NamedReward
from mindrl.rewards.service import Chunk, settled
from mindrl.rewards.worker import score_rows

OBEY = f"{Path(__file__).with_name('hostile_reward.py')}:obey"

CALLER = """
import sys
from pathlib import Path
from mindrl.config.rl import RLConfig
from mindrl.rewards.scorer import RewardScorer
with open(sys.argv[2], "a") as imports:
    imports.write("imported\\n")
if __name__ == "__main__":
    rl = RLConfig(
        mini_batch_size=1,
        verifier_function=(sys.argv[1],),
        verifier_weight=(1.0,),
        verifier_timeout=600.0,
        verifier_parallel=2,
    )
    scorer = RewardScorer(rl)
    scorer.score(["fine"], ["72"])
    print("scoring", flush=True)
    scorer.score(["hang with children"] * 8, ["72"] * 8)
"""


def marked_processes(mark: str) -> list[int]:
    """Return the live processes that were started with the mark in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it ended, or is another user's
            continue
    return found


def wait_for_count(mark: str, low: int, high: int, seconds: float) -> int:
    deadline = time.monotonic() + seconds
    while not low <= (count := len(marked_processes(mark))) <= high:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return count


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    value = uuid.uuid4().hex
    monkeypatch.setenv("MINDRL_TEST_MARK", value)
    return value


def test_close_leaves_no_process_and_may_be_called_twice(mark: str) -> None:
    with scorer_of([OBEY], [1.0], 1.0, 2) as scorer:
        scorer.score(["fine"] * 4 + ["hang with children"], ["72"] * 5)
        assert len(marked_processes(mark)) >= 4  # the guard, the service and 2 workers
    assert marked_processes(mark) == []
    scorer.close()


def test_close_right_after_warm_up_leaves_no_process(mark: str) -> None:
    with scorer_of(["math_verify"], [1.0], 1.0, 2) as scorer:
        scorer.warm_up()
        # Behind a fork the mark is seen once the new program has been loaded.
        assert wait_for_count(mark, 1, 9, seconds=5.0) >= 1
    assert wait_for_count(mark, 0, 0, seconds=5.0) == 0


def test_warm_up_returns_before_an_import_of_1_second_ends(tmp_path: Path) -> None:
    file = tmp_path / "heavy.py"
    file.write_text("import time\ntime.sleep(1)\ndef one(r, a):\n    return 1.0\n")
    with scorer_of([f"{file}:one"], [1.0], 1.0, 1) as scorer:
        started = time.monotonic()
        scorer.warm_up()
        assert time.monotonic() - started < 1.0
        assert scorer.score(["a"], ["72"]).rewards == (1.0,)


def test_a_killed_caller_leaves_no_process_and_its_main_module_ran_once(
    mark: str, tmp_path: Path
) -> None:
    script, imports = tmp_path / "caller.py", tmp_path / "imports"
    script.write_text(CALLER, encoding="utf-8")
    command = [sys.executable, str(script), OBEY, str(imports)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"scoring\n"
        # The caller, the guard, the service, 2 hanging workers and the 4 children of each.
        started = wait_for_count(mark, 13, 99, seconds=90.0)
        # Before anything is judged: it would wait for ever.
        caller.kill()
    assert started >= 13
    assert wait_for_count(mark, 0, 0, seconds=10.0) == 0
    assert imports.read_text(encoding="utf-8") == "imported\n"


def test_processes_that_calls_leave_behind_end_with_the_batch(mark: str) -> None:
    """Three answers leave two each; the one whose worker is killed leaves four."""
    with scorer_of([OBEY], [1.0], 1.5, 2) as scorer:
        scores = scorer.score(["leave orphans"] * 3 + ["hang with children"], ["72"] * 4)
        assert scores.rewards == (1.0, 1.0, 1.0, -1.0)
        assert wait_for_count(mark, 0, 4, seconds=5.0) == 4  # the guard, the service and 2 workers
        assert scorer.score(["fine"], ["72"]).rewards == (72.0,)
    assert marked_processes(mark) == []


@pytest.mark.parametrize("killed", ["guard", "service"])
def test_a_killed_guard_or_host_takes_its_workers_along(killed: str, mark: str) -> None:
    """The workers die by the kernel's hand; of what they started the guard takes care."""
    scorer = scorer_of([OBEY], [1.0], 600.0, 2)
    scorer.score(["fine"], ["72"])
    (guard,) = {os.getsid(process) for process in marked_processes(mark)}
    (service,) = psutil.Process(guard).children()
    if killed == "service":
        threading.Timer(1.0, service.kill).start()
        with pytest.raises(RewardError, match="ended with exit code 137"):
            scorer.score(["hang with children"] * 4, ["72"] * 4)
    else:
        os.kill(guard, signal.SIGKILL)
    assert wait_for_count(mark, 0, 0, seconds=5.0) == 0
    scorer.close()


def test_the_scorer_works_on_after_an_interrupted_call(mark: str) -> None:
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with scorer_of([OBEY], [1.0], 600.0, 2) as scorer:
            scorer.score(["fine"], ["72"])
            main = threading.main_thread().ident
            assert main is not None
            threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGUSR1)).start()
            with pytest.raises(KeyboardInterrupt):
                scorer.score(["hang with children"] * 4, ["72"] * 4)
            assert wait_for_count(mark, 0, 0, seconds=5.0) == 0
            assert scorer.score(["fine", "fine"], ["1", "2"]).rewards == (1.0, 2.0)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_chunk_lost_without_fault_runs_again_3_times_then_one_by_one() -> None:
    chunk = Chunk(function="f", indices=(4, 5))
    for times_lost in (1, 2, 3):
        final, (chunk,) = settled(chunk, None)
        assert final == {}
        assert (chunk.indices, chunk.times_lost) == ((4, 5), times_lost)
    final, rest = settled(chunk, None)
    assert (final, [single.indices for single in rest]) == ({}, [(4,), (5,)])


def test_a_single_answer_lost_4_times_is_a_crash() -> None:
    single = Chunk(function="f", indices=(4,), times_lost=3)
    broken = Failure(kind="crash", detail="the scoring processes broke 4 times")
    assert settled(single, None) == ({4: broken}, [])


def test_a_chunk_that_ran_out_of_budget_after_2_of_3_answers_sends_the_third_again() -> None:
    chunk = Chunk(function="f", indices=(7, 8, 9))
    final, rest = settled(chunk, [1.0, 0.5])
    assert (final, [left.indices for left in rest]) == ({7: 1.0, 8: 0.5}, [(9,)])


def test_a_worker_stops_after_the_answer_that_spends_its_budget() -> None:
    answers = [("fine", "1"), ("fine", "2"), ("fine", "3")]
    obey = NamedReward(name=OBEY)
    assert score_rows(obey, answers, timeout_seconds=120.0) == [1.0, 2.0, 3.0]
    assert score_rows(obey, answers, timeout_seconds=0.0) == [1.0]
