"""A folder is removed with its owner, or at the next start after its owner was killed."""

import subprocess
import sys
from pathlib import Path

from mindrl.platform.scratch import Scratch, remove_unowned

OWNER = """
import sys, time
from pathlib import Path
from mindrl.platform.scratch import Scratch
folder = Path(sys.argv[1])
folder.mkdir()
kept = Scratch(folder)
print("owned", flush=True)
time.sleep(600)
"""


def test_a_folder_is_removed_once_its_owner_was_killed_and_not_before(tmp_path: Path) -> None:
    folder, others = tmp_path / "ours-1", tmp_path / "ours-of-another-program"
    others.mkdir()
    command = [sys.executable, "-c", OWNER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "owned\n"
        (folder / "socket").touch()
        remove_unowned(tmp_path, "ours-*")
        assert (folder / "socket").exists()
        owner.kill()
        owner.wait()
    remove_unowned(tmp_path, "ours-*")
    assert not folder.exists()
    # It has no owner that this program knows of.
    assert others.exists()


def test_a_closed_folder_is_gone_and_can_be_closed_again(tmp_path: Path) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    kept = Scratch(folder)
    kept.close()
    kept.close()
    assert not folder.exists()


REPLACED = """
import os, sys
from pathlib import Path
from mindrl.platform.scratch import Scratch
folder = Path(sys.argv[1])
folder.mkdir()
kept = Scratch(folder)
kept.keep_over_exec()
os.execvp("sh", ["sh", "-c", "echo owned; exec sleep 600"])
"""


def test_the_program_that_replaces_the_owner_owns_the_folder_until_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "ours-1"
    command = [sys.executable, "-c", REPLACED, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "owned\n"
        remove_unowned(tmp_path, "ours-*")
        assert folder.exists()
        owner.kill()
        owner.wait()
    remove_unowned(tmp_path, "ours-*")
    assert not folder.exists()
