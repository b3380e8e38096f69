"""The count of a process, read from another one."""

import subprocess
import sys
import threading

import pytest

from mindrl.observability.progress import Progress, ProgressPage, Ticks

CHILD = """
import sys
from mindrl.observability.progress import PROGRESS, tick
print(PROGRESS.share(), flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


def test_another_process_reads_the_ticks_and_those_of_the_call() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        page = ProgressPage(child.pid, int(child.stdout.readline()))
        assert page.read() == Ticks(ticks=0, work=0, is_steady=False)
        for line, expected in (
            ("[tick() for _ in range(7)]", Ticks(ticks=7, work=7, is_steady=False)),
            ("PROGRESS.begin()", Ticks(ticks=8, work=0, is_steady=False)),
            (
                "on = PROGRESS.steady(); on.__enter__(); tick()",
                Ticks(ticks=9, work=1, is_steady=True),
            ),
            (
                "PROGRESS.enter('builds the models')",
                Ticks(ticks=9, work=1, is_steady=True, stage="builds the models"),
            ),
            ("PROGRESS.enter('')", Ticks(ticks=9, work=1, is_steady=True)),
        ):
            child.stdin.write(f"{line}\n")
            child.stdin.flush()
            child.stdout.readline()
            assert page.read() == expected
        child.stdin.close()
    # The memory is there for as long as somebody looks at it.
    assert page.read().ticks == 9


def test_stages_count_the_seconds_until_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 12.5, 13.0, 14.0])
    monkeypatch.setattr("time.monotonic", lambda: next(moments))
    progress = Progress()
    for stage in ("imports libraries", "waits for the other workers", "imports libraries", ""):
        progress.enter(stage)
    assert progress.stages == {"imports libraries": 3.5, "waits for the other workers": 0.5}


def test_a_process_that_shares_nothing_counts_for_itself() -> None:
    progress = Progress()
    worker = threading.Thread(target=progress.tick)
    worker.start()
    worker.join()
    progress.begin()
    progress.tick()
    assert progress.done() == 1
