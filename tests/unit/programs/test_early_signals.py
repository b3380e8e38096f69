"""A program that is still being imported handles signals as one that runs."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SIGTERM_BIT = 1 << (signal.SIGTERM - 1)


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "cli/train_grpo.py"],
        [sys.executable, "-c", "from mindrl.programs.entry import main; main()", "train-grpo"],
    ],
    ids=["script", "command"],
)
def test_sigterm_while_a_program_is_imported_ends_it_with_130_and_sigusr1_does_not(
    command: list[str], tmp_path: Path
) -> None:
    given = [*command, "--dry-run", f"hydra.run.dir={tmp_path}"]
    process = subprocess.Popen(given, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    status = Path(f"/proc/{process.pid}/status")
    while not caught(status) & SIGTERM_BIT:
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGUSR1)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "error: stopped by SIGTERM"


def caught(status: Path) -> int:
    """Return the signals that a process has handlers for, as the kernel tells them."""
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)", status.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1], 16)
