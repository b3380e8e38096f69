"""One process writes into a run folder: its lock dies with it, and names it."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from mindrl.errors import OutputError
from mindrl.observability import run_lock as module
from mindrl.observability.holder import Holder, this_machine, this_process
from mindrl.observability.run_lock import run_lock

_HOLDS = """\
import os, sys, time
from pathlib import Path
from mindrl.observability.run_lock import run_lock
with run_lock(Path(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""
ELSEWHERE = Holder(host="other 1 another-boot", pid=7, started=1.0, what="a run")


@contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Have another process hold a folder; it has forked a child that outlives it."""
    command = [sys.executable, "-c", _HOLDS, str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        os.killpg(process.pid, 9)


def put(folder: Path, owner: Holder) -> Path:
    record = folder / ".owner.json"
    record.write_text(json.dumps(asdict(owner)))
    return record


def test_a_second_process_is_refused_and_told_who_has_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with holding(folder) as process:
        before = (folder / ".owner.json").read_bytes()
        with pytest.raises(OutputError) as error, run_lock(folder):
            pytest.fail("two hold it")
        said = str(error.value)
        assert said.startswith(f"{folder} is in use by a run, process {process.pid} on ")
        assert "hydra.run.dir=outputs/another" in said
        assert (folder / ".owner.json").read_bytes() == before


def test_a_killed_process_lets_go_at_once_though_what_it_forked_lives(tmp_path: Path) -> None:
    with holding(tmp_path) as process:
        process.kill()
        process.wait()
        began = time.monotonic()
        with run_lock(tmp_path):
            assert time.monotonic() - began < 5
            owner = json.loads((tmp_path / ".owner.json").read_bytes())
            assert owner == asdict(this_process("a run"))


def test_a_folder_is_free_again_after_its_run_and_not_taken_twice_by_one_process(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        second = pytest.raises(OutputError, match=f"process {os.getpid()} on")
        with run_lock(tmp_path), second, run_lock(tmp_path):
            pytest.fail("one process holds it twice")
        assert not (tmp_path / ".owner.json").exists()
    with pytest.raises(ZeroDivisionError), run_lock(tmp_path):
        raise ZeroDivisionError
    assert not (tmp_path / ".owner.json").exists()


def test_a_run_of_another_machine_lives_while_it_renews_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file system keeps locks to one machine: ours is granted."""
    record = put(tmp_path, ELSEWHERE)
    renews = "import os, sys, time\nwhile True: os.utime(sys.argv[1]); time.sleep(0.1)"
    with subprocess.Popen([sys.executable, "-c", renews, str(record)]) as other:
        said = r"a run, process 7 on other, started"
        with pytest.raises(OutputError, match=said), run_lock(tmp_path):
            pytest.fail("two hold it")
        other.kill()
    monkeypatch.setattr(module, "_SILENT_SECONDS", 1.0)
    began = time.monotonic()
    with run_lock(tmp_path):
        assert time.monotonic() - began >= 1
    assert "was last used by a run, process 7 on other: waiting up to" in capsys.readouterr().err


def test_a_container_of_this_machine_that_has_lost_the_lock_is_not_waited_for(
    tmp_path: Path,
) -> None:
    name, _, boot = this_machine().split(" ")
    put(tmp_path, replace(ELSEWHERE, host=f"{name} 1 {boot}"))
    began = time.monotonic()
    with run_lock(tmp_path):
        assert time.monotonic() - began < 5


def test_where_the_file_system_has_no_locks_the_record_alone_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "lockf", none)
    with holding(tmp_path) as process:
        with pytest.raises(OutputError, match=f"process {process.pid} on"), run_lock(tmp_path):
            pytest.fail("two hold it")
        process.kill()
        process.wait()
        with run_lock(tmp_path):
            pass


def test_a_record_is_renewed_and_a_damaged_one_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RENEWAL_SECONDS", 0.05)
    monkeypatch.setattr(module, "_SILENT_SECONDS", 0.1)
    record = tmp_path / ".owner.json"
    record.write_bytes(b"{")
    with run_lock(tmp_path):
        os.utime(record, (0, 0))
        deadline = time.monotonic() + 20
        while record.stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_folder_that_takes_no_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said, below = "needs a writable folder", tmp_path / "file/run"
    with pytest.raises(OutputError, match=said), run_lock(below):
        pytest.fail("it holds a file")


def test_the_command_of_the_docs_signals_the_process_that_holds_the_folder(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs/how-to/watch-a-run.md"
    (line,) = (each for each in page.read_text("utf-8").splitlines() if "    kill -USR1" in each)
    command = line.replace("kill -USR1", "echo").replace("RUN", str(tmp_path))
    with run_lock(tmp_path):
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == f"{os.getpid()}\n"
