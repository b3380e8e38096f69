"""What is left of the scoring processes: nothing, whatever ended them."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from scorers import scorer_of

from mindrl.errors import RewardError
from mindrl.rewards.host import RewardService
from mindrl.rewards.scores import Failure, NamedReward, Outcome, PoolPlan
from mindrl.rewards.service import Chunk, FailureStreaks, settled
from mindrl.rewards.worker import score_rows

OBEY = f"{Path(__file__).with_name('hostile_reward.py')}:obey"

CALLER = """
import sys
import time
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
    # The guard removes what this batch left when it receives a signal, which is later under load.
    time.sleep(2)
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
        # The guard, the service and 2 workers, one of them started again after it hung.
        assert wait_for_count(mark, 4, 9, seconds=10.0) >= 4
    assert marked_processes(mark) == []
    scorer.close()


def test_close_right_after_warm_up_leaves_no_process(mark: str) -> None:
    with scorer_of(["math_verify"], [1.0], 1.0, 2) as scorer:
        scorer.warm_up()
        # Behind a fork the mark is seen once the new program has been loaded.
        assert wait_for_count(mark, 1, 9, seconds=5.0) >= 1
    assert wait_for_count(mark, 0, 0, seconds=5.0) == 0


def test_warm_up_returns_before_an_import_of_4_seconds_ends(tmp_path: Path) -> None:
    file = tmp_path / "heavy.py"
    file.write_text("import time\ntime.sleep(4)\ndef one(r, a):\n    return 1.0\n")
    with scorer_of([f"{file}:one"], [1.0], 1.0, 1) as scorer:
        started = time.monotonic()
        scorer.warm_up()
        assert time.monotonic() - started < 4.0
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
    guard, service = host_of(mark)
    (service if killed == "service" else guard).kill()
    assert wait_for_count(mark, 0, 0, seconds=5.0) == 0
    scorer.close()


def host_of(mark: str) -> tuple[psutil.Process, psutil.Process]:
    """Return the guard and the service of the only scorer."""
    (guard,) = {os.getsid(process) for process in marked_processes(mark)}
    (service,) = psutil.Process(guard).children()
    return psutil.Process(guard), service


@pytest.mark.parametrize("killed", ["guard", "service"])
def test_a_host_that_is_killed_while_it_scores_is_started_again(
    killed: str, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with scorer_of([OBEY], [1.0], 1.5, 2) as scorer:
        scorer.score(["fine"], ["72"])
        guard, service = host_of(mark)
        threading.Timer(0.7, (service if killed == "service" else guard).kill).start()
        # Without a guard nobody ends what the functions have started.
        hangs = "hang with children" if killed == "service" else "hang"
        scores = scorer.score([hangs, "fine"], ["72", "72"])
        assert scores.rewards == (-1.0, 72.0)
    assert (
        "the reward host was killed by SIGKILL; see its stderr for the reason; restarting it"
    ) in " ".join(capsys.readouterr().err.split())
    assert marked_processes(mark) == []


def test_a_host_that_is_killed_again_and_again_ends_the_run(mark: str) -> None:
    is_over = threading.Event()

    def kill_hosts() -> None:
        while not is_over.wait(0.5):
            with suppress(ValueError, psutil.Error):
                host_of(mark)[0].kill()

    with scorer_of([OBEY], [1.0], 600.0, 2) as scorer:
        scorer.score(["fine"], ["72"])
        killer = threading.Thread(target=kill_hosts)
        killer.start()
        with pytest.raises(RewardError, match=r"^the reward host was killed by SIGKILL; "):
            scorer.score(["hang"], ["72"])
        is_over.set()
        killer.join()


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
    broken = Failure(kind="crash", detail="the scoring processes ended 4 times")
    assert settled(single, None) == ({4: broken}, [])


def test_a_chunk_that_ran_out_of_budget_after_2_of_3_answers_sends_the_third_again() -> None:
    chunk = Chunk(function="f", indices=(7, 8, 9))
    final, rest = settled(chunk, [1.0, 0.5])
    assert (final, [left.indices for left in rest]) == ({7: 1.0, 8: 0.5}, [(9,)])


LATE = Failure(kind="timeout", detail="no score within 5 s")


def test_an_answer_that_is_late_by_itself_has_one_more_try() -> None:
    single = Chunk(function="f", indices=(4,))
    final, (last,) = settled(single, LATE)
    assert (final, last) == ({}, Chunk(function="f", indices=(4,), is_last=True))
    assert settled(last, LATE) == ({4: LATE}, [])
    assert settled(last, [1.0]) == ({4: 1.0}, [])


def test_of_calls_side_by_side_the_late_ones_alone_have_one_more_try() -> None:
    final, rest = settled(Chunk(function="f", indices=(4, 5, 6)), [1.0, LATE, 0.5])
    assert final == {4: 1.0, 6: 0.5}
    assert rest == [Chunk(function="f", indices=(5,), is_last=True)]
    assert settled(rest[0], [LATE]) == ({5: LATE}, [])


def test_a_right_answer_that_a_busy_machine_makes_late_is_right(tmp_path: Path) -> None:
    file, tries = tmp_path / "late.py", tmp_path / "tries"
    file.write_text(
        "import time\n"
        "def late(response, reference):\n"
        "    if response == 'late':\n"
        f"        with open({str(tries)!r}, 'a+') as file:\n"
        "            file.write('x'); file.seek(0)\n"
        "            if len(file.read()) < 2: file.close(); time.sleep(1000)\n"
        "    return 1.0\n"
    )
    with scorer_of([f"{file}:late"], [1.0], timeout_seconds=1.0, processes=1) as scorer:
        scores = scorer.score(["late", "fine", "fine"], ["72"] * 3)
    assert (scores.rewards, scores.failures) == ((1.0,) * 3, ())
    assert tries.read_text() == "xx"


def test_a_worker_stops_after_the_answer_that_spends_its_budget() -> None:
    answers = [("fine", "1"), ("fine", "2"), ("fine", "3")]
    obey = NamedReward(name=OBEY)
    assert score_rows(obey, answers, timeout_seconds=120.0) == [1.0, 2.0, 3.0]
    assert score_rows(obey, answers, timeout_seconds=0.0) == [1.0]


def _outcomes(folder: Path, hangs: int, patience_seconds: float) -> tuple[list[Outcome], int]:
    """Score 96 responses with a judge whose first calls hang; return outcomes and tries."""
    (tries := folder / "tries").touch()
    (file := folder / "judge.py").write_text(
        "import asyncio\n"
        "async def judge(response, reference):\n"
        f"    with open({str(tries)!r}, 'a') as file:\n"
        "        file.write('x')\n"
        f"        hangs = file.tell() <= {hangs}\n"
        "    if hangs: await asyncio.sleep(1000)\n"
        "    return 1.0\n"
        "judge.concurrency = 32\n"
    )
    name = f"{file}:judge"
    plan = PoolPlan(
        rewards=(NamedReward(name=name),),
        timeout_seconds=1.0,
        processes=1,
        patience_seconds=patience_seconds,
    )
    service = RewardService(plan)
    try:
        outcomes = service.score({name: [("a", "72")] * 96})[name]
    finally:
        service.kill()
    return [*outcomes], len(tries.read_text())


def test_a_judge_that_hangs_for_all_is_not_tried_again_for_each(tmp_path: Path) -> None:
    outcomes, tries = _outcomes(tmp_path, hangs=1000, patience_seconds=0.0)
    late = {each.kind if isinstance(each, Failure) else each for each in outcomes}
    assert (late, len(outcomes)) == ({"timeout"}, 96)
    # At most the first try of each; otherwise each is tried again, alone.
    assert 64 <= tries <= 96


def test_a_judge_that_hangs_at_first_scores_all_within_its_patience(tmp_path: Path) -> None:
    outcomes, tries = _outcomes(tmp_path, hangs=64, patience_seconds=600.0)
    assert (outcomes, tries) == ([1.0] * 96, 160)


def test_calls_for_lists_that_fail_late_do_not_cost_that_time_for_each_list(tmp_path: Path) -> None:
    """Of 6 lists of 64, most do not wait: their responses are scored one by one."""
    (waits := tmp_path / "waits").touch()
    (file := tmp_path / "judge.py").write_text(
        "import os, time\n"
        "def judge(responses, references):\n"
        "    if len(responses) == 1: return [1.0]\n"
        "    time.sleep(2)\n"
        f"    with open({str(waits)!r}, 'a') as file: file.write('x')\n"
        "    os._exit(1)\n"
    )
    name = f"{file}:judge"
    plan = PoolPlan(
        rewards=(NamedReward(name=name),), timeout_seconds=60.0, processes=1, patience_seconds=0.0
    )
    service = RewardService(plan)
    try:
        outcomes = service.score({name: [("a", "72")] * 384})[name]
    finally:
        service.kill()
    assert outcomes == (1.0,) * 384
    # The next one may run before the first is seen to fail.
    assert 1 <= len(waits.read_text()) <= 3


def test_a_function_is_doubtful_while_calls_for_several_responses_fail_and_none_scores() -> None:
    streaks, several = FailureStreaks(patience_seconds=0.0), Chunk(function="f", indices=(4, 5))
    single = Chunk(function="f", indices=(6,))
    for _ in range(32):
        streaks.add(several, LATE)
    assert (streaks.doubtful(), streaks.hopeless()) == ({"f"}, {})
    streaks.add(single, [1.0])
    assert streaks.doubtful() == set()
    for _ in range(32):
        streaks.add(single, LATE)
    assert (streaks.doubtful(), streaks.hopeless()) == (set(), {"f": LATE})
    patient = FailureStreaks(patience_seconds=600.0)
    patient.add(several, LATE)
    assert patient.doubtful() == set()
