"""Checkpoints are there whole or not at all, whatever happens to the process or to a file."""

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mindrl.checkpoint.commits import Commits, checksum_of, read_checkpoint, verify, write_synced
from mindrl.errors import CheckpointError, OutputError
from mindrl.observability.progress import PROGRESS

RANKS = ("actor-00000.safetensors", "actor-00001.safetensors")


def save(commits: Commits, step: int, size: int = 1000) -> Path:
    folder = commits.begin(step)
    files = [write_synced(folder / name, [f"{step} {name} ".encode() * size]) for name in RANKS]
    return commits.commit(step, files, {"step": step}).folder


def test_a_file_is_on_the_disk_piece_by_piece_and_each_piece_counts_as_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = []
    monkeypatch.setattr("mindrl.checkpoint.commits._SYNCED_BYTES", 1000)
    monkeypatch.setattr(os, "fsync", lambda file: lengths.append(os.fstat(file).st_size))
    content, before = bytes(range(250)) * 20, PROGRESS.cells[0]
    written = write_synced(tmp_path / "file", [content[:40], content[40:90], content[90:]])
    # 90 bytes wait for the first whole piece of the rest, and 910 are left at the end.
    assert lengths == [1090, 2090, 3090, 4090, 5000]
    assert PROGRESS.cells[0] - before == 2 + 5
    assert (tmp_path / "file").read_bytes() == content
    assert written.checksum == checksum_of(tmp_path / "file")


def test_what_is_committed_is_read_back_and_verified(tmp_path: Path) -> None:
    commits = Commits(tmp_path / "checkpoints")
    assert commits.newest_complete() == (None, [])
    for step in (5, 10):
        save(commits, step)
    newest, problems = commits.newest_complete()
    assert newest is not None
    assert (newest.step, newest.state(), problems) == (10, {"step": 10}, [])
    assert [path.name for path in newest.paths("actor-")] == [*RANKS]
    assert newest.files[0].checksum == checksum_of(newest.folder / RANKS[0])
    assert commits.steps() == [10, 5]


def test_a_commit_that_failed_can_be_made_again(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    building = commits.begin(2)
    files = [write_synced(building / RANKS[0], [b"part"])]
    files.append(replace(files[0], name="late"))
    with pytest.raises(OutputError, match="late"):
        commits.commit(2, files, {"step": 2})
    write_synced(building / "late", [b"part"])
    assert commits.commit(2, files, {"step": 2}).state() == {"step": 2}
    assert commits.steps() == [2]


def test_a_step_that_is_not_committed_counts_for_nothing_and_is_gone_with_the_next_attempt(
    tmp_path: Path,
) -> None:
    commits = Commits(tmp_path)
    save(commits, 1)
    left = commits.begin(2)
    write_synced(left / RANKS[0], [b"half"])
    assert commits.steps() == [1]
    assert not any(commits.begin(2).iterdir())
    commits.abandon(2)
    assert not left.exists()


def test_pruning_keeps_what_it_is_told_to_keep(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    for step in range(1, 6):
        save(commits, step)
    commits.prune(keep=[2, 5])
    assert commits.steps() == [5, 2]


def test_a_manifest_of_another_step_is_refused(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    stale = save(commits, 3) / "manifest.json"
    newer = save(commits, 4) / "manifest.json"
    newer.write_text(stale.read_text())
    with pytest.raises(CheckpointError, match="step=3 does not match the folder"):
        commits.read(4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "must contain a JSON object"),
        ('{"version": 9}', "version=9 must be 1"),
        ('{"version": 1, "step": 4}', "is not a manifest"),
        ('{"version": 1, "step": 4, "files": [{"name": 1}]}', "is not a manifest"),
        ("{", "cannot read"),
    ],
)
def test_a_manifest_that_is_none_is_refused(text: str, said: str, tmp_path: Path) -> None:
    folder = save(Commits(tmp_path), 4)
    (folder / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(folder)


def test_a_file_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    folder = commits.begin(4)
    outside = write_synced(tmp_path / "secret", [b"0"])
    folder = commits.commit(4, [replace(outside, name="../secret")], {}).folder
    with pytest.raises(CheckpointError, match=r"'../secret' must be a file in its folder"):
        read_checkpoint(folder)


def test_a_file_that_the_driver_cannot_see_is_an_error_that_says_what_is_needed(
    tmp_path: Path,
) -> None:
    commits = Commits(tmp_path)
    folder = commits.begin(1)
    written = write_synced(folder / RANKS[0], [b"weights"])
    (folder / RANKS[0]).write_bytes(b"less")
    with pytest.raises(OutputError, match="all nodes must share this folder"):
        commits.commit(1, [written], {})
    (folder / RANKS[0]).unlink()
    with pytest.raises(OutputError, match="cannot write"):
        commits.commit(1, [written], {})
    assert commits.steps() == []


@pytest.mark.nightly
@pytest.mark.parametrize("kills", [40, pytest.param(200, marks=pytest.mark.nightly)])
def test_kills_at_random_instants_of_saves_leave_a_whole_checkpoint_each_time(
    kills: int, tmp_path: Path
) -> None:
    """Of the newest or the step before it; a child says what it has committed."""
    commits, chance = Commits(tmp_path), random.Random(5)
    step, cut_short = 0, 0
    for _ in range(kills):
        (reading, writing), began = os.pipe(), time.monotonic()
        child = os.fork()
        if child == 0:
            _save_for_ever(commits, step + 1, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            # The first commit of the child, and then any instant of the second.
            said.read(8)
            time.sleep(chance.uniform(0, time.monotonic() - began))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            told = step + 1 + len(said.read()) // 8
        cut_short += any(path.name.endswith(".writing") for path in tmp_path.iterdir())
        newest, problems = commits.newest_complete()
        assert newest is not None
        assert newest.step in (told, told + 1)
        assert newest.state() == {"step": newest.step}
        verify(newest.folder, newest.files)
        # One that was being removed is older than any that could be asked for.
        assert not [each for each in problems if f"step-{newest.step:08}" in each]
        step = newest.step
    assert cut_short >= kills // 4, "the kills missed the saves"


def test_what_a_killed_run_left_of_another_step_is_removed(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    (commits.begin(37) / "actor-00000.safetensors").write_bytes(b"half of it")
    save(commits, 40, size=10)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000040"]


def _save_for_ever(commits: Commits, first: int, writing: int) -> None:
    try:
        step = first
        while True:
            save(commits, step, size=2000)
            os.write(writing, step.to_bytes(8, "little"))
            commits.prune(keep=[step, step - 1])
            step += 1
    finally:
        os._exit(1)
