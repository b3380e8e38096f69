"""How processes ended, and what the kernel counts of those that it killed for their memory."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mindrl.platform.endings import OutOfMemoryKills, ending, ending_of_child


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("import sys; sys.exit(3)", "ended with exit code 3"),
    ],
)
def test_the_ending_of_a_child_is_read_and_left_to_whoever_waits_for_it(
    program: str, said: str
) -> None:
    child = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while ending_of_child(child.pid) == "is gone" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ending_of_child(child.pid) == said
    assert ending(child.wait()) == said
    assert ending_of_child(child.pid) == "is gone"


def test_a_signal_without_a_name_is_said_by_its_number() -> None:
    unnamed = next(n for n in range(1, 65) if n not in {*signal.Signals})
    assert ending(-unnamed) == f"was killed by signal {unnamed}"


def counted(folder: Path, **kills: int) -> OutOfMemoryKills:
    """Write files as the kernel has them, and read them."""
    own, root, kernel = folder / "cgroup", folder / "groups", folder / "vmstat"
    own.write_text("0::/job/step\n")
    (root / "job/step").mkdir(parents=True, exist_ok=True)
    for name, place in {"step": "job/step", "job": "job"}.items():
        if name in kills:
            text = f"low 0\noom 7\noom_kill {kills[name]}\noom_group_kill 0\n"
            (root / place / "memory.events").write_text(text)
    kernel.write_text(f"nr_free_pages 5\noom_kill {kills['kernel']}\n")
    return OutOfMemoryKills.read(own, root, kernel)


@pytest.mark.parametrize(
    ("before", "after", "file"),
    [
        ({"step": 1, "job": 1, "kernel": 4}, {"step": 2, "job": 2, "kernel": 5}, "job/step"),
        ({"job": 1, "kernel": 4}, {"job": 2, "kernel": 5}, "job"),
        ({"kernel": 4}, {"kernel": 5}, None),
    ],
)
def test_the_nearest_group_that_counts_a_kill_is_named(
    before: dict[str, int], after: dict[str, int], file: str | None, tmp_path: Path
) -> None:
    first = counted(tmp_path, **before)
    said = counted(tmp_path, **after).since(first)
    named = tmp_path / "vmstat" if file is None else tmp_path / "groups" / file / "memory.events"
    assert "the kernel killed 1 process(es)" in said
    assert f"(oom_kill in {named}); the memory limit is " in said
    assert said.endswith(" GiB")
    assert counted(tmp_path, **after).since(counted(tmp_path, **after)) == ""


def test_the_first_version_of_control_groups_counts_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/job\n3:cpuset:/\n")
    (tmp_path / "groups/memory/job").mkdir(parents=True)
    file = tmp_path / "groups/memory/job/memory.oom_control"
    file.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    read = OutOfMemoryKills.read(tmp_path / "cgroup", tmp_path / "groups", tmp_path / "none")
    assert read.counts == {file: 3}


def test_this_machine_has_a_count() -> None:
    assert OutOfMemoryKills.read().counts
