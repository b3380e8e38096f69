"""A disk that does not take a checkpoint ends a run or costs it that checkpoint, as it is asked.

The state is real and so are the files. A checkpoint is due behind steps 2, 4 and 6; what is wrong
with the disk begins with the one of step 4, and is over before the one of step 6.
"""

import errno
import io
import os
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from memory_roles import MemoryRoles, config, data, lines, rewards, run_log
from torch._C._distributed_c10d import HashStore

from mindrl.checkpoint.commits import Commits, SavedFiles, verify
from mindrl.errors import OutputError
from mindrl.observability.console import StepConsole
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.training.state_slice import StateSlice
from mindrl.workers.device_regions import StoredRegion
from mindrl.workers.state_saver import StateSaver

ELEMENTS = 64 << 10
"""Of the one weight: a checkpoint takes a quarter of a MiB."""
SKIPPED = "checkpoint/skipped"
Moment = Literal["before", "while", "commit"]


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """A process group of one, taken down again behind this file."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@contextmanager
def full(disk: Path) -> Iterator[None]:
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    yield
    filler.unlink()


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    mounted("-o", "remount,ro", str(disk))
    yield
    mounted("-o", "remount,rw", str(disk))


@contextmanager
def short_files(_disk: Path) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def fsync_that(does: Callable[[int], None]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", does)
        yield


def failing(_disk: Path) -> Any:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return fsync_that(fail)


finishing = threading.Event()
"""Set from when a step waits for its checkpoint to when the next one is begun."""


def slow(_disk: Path) -> Any:
    """Delay fsync until a step waits for the checkpoint, and by 0.3 s from then on."""

    def write_late(_descriptor: int) -> None:
        assert finishing.wait(60)
        time.sleep(0.3)

    return fsync_that(write_late)


@contextmanager
def gone(disk: Path) -> Iterator[None]:
    shutil.rmtree(next(disk.glob(".*.writing")))
    yield


@dataclass(frozen=True)
class Case:
    trouble: Callable[[Path], Any]
    moment: Moment
    """Before the checkpoint is begun, before its file is written, or before it is committed."""
    said: str
    is_mounted: bool = False


CASES = {
    "full before it is begun": Case(full, "before", "was not started: it needs 0.3 MiB", True),
    "full while it is written": Case(full, "while", "No space left on device", True),
    "full when it is committed": Case(full, "commit", "No space left on device", True),
    "read-only": Case(read_only, "before", "Read-only file system", True),
    "files that may not be so long": Case(short_files, "while", "File too large"),
    "an error of the device": Case(failing, "while", "Input/output error"),
    "a folder that goes away": Case(gone, "commit", "No such file or directory"),
}


class SavingRoles(MemoryRoles):
    """Saves as a worker does, on a disk that something is wrong with for a while."""

    def __init__(self, disk: Path, case: Case) -> None:
        super().__init__()
        self.disk, self.case, self.now = disk, case, ExitStack()
        self.weight = torch.full((ELEMENTS,), 1.0)
        region = StoredRegion([self.weight], None, "cpu")
        self.saver = StateSaver({"actor": self}, {"actor": [region]})
        self.updates, self.step, self.routes = 7, 0, None

    def state_slices(self) -> Iterator[StateSlice]:
        bounds = (0, ELEMENTS)
        yield StateSlice(
            tensor="weight",
            kind="weight",
            box=(bounds,),
            stored=self.weight,
            run=bounds,
            shape=(ELEMENTS,),
            local=(bounds,),
            axes=None,
            is_ours=True,
        )

    def generate_sequences(self, *arguments: Any, step: int, **more: Any) -> Any:
        self.step = step
        if step == 6:
            # Whatever became of the checkpoint of step 4, the one before it is as it was.
            before = Commits(self.disk).read(2)
            verify(before.folder, before.files)
            self.now.close()
        self.meet("before", 4)
        self.meet("while", 5)
        self.saver.start()
        return super().generate_sequences(*arguments, step=step, **more)

    def save_bytes(self) -> int:
        return self.saver.nbytes()

    def begin_save(self, folder: Path) -> None:
        finishing.clear()
        self.saver.request(folder)

    def finish_save(self) -> list[SavedFiles]:
        finishing.set()
        saved = self.saver.finish()
        self.meet("commit", 5)
        return [saved]

    def meet(self, moment: Moment, step: int) -> None:
        if (moment, step) == (self.case.moment, self.step):
            self.now.enter_context(self.case.trouble(self.disk))


def mounted(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk_of(tmp_path: Path) -> Iterator[Callable[[Case], Path]]:
    """Make the folder of the checkpoints, on a disk of one MiB where the case needs that."""
    disk = tmp_path / "checkpoints"

    def make(case: Case) -> Path:
        disk.mkdir()
        if case.is_mounted and not mounted("-t", "tmpfs", "-o", "size=1m", "none", str(disk)):
            pytest.skip("only root mounts a disk")
        return disk

    yield make
    if disk.is_mount():
        subprocess.run(["umount", str(disk)], check=True)


def build(root: Path, roles: SavingRoles, policy: str) -> tuple[PolicyTrainer, io.StringIO]:
    settings = config(train_iters=6, save_interval=2, on_save_failure=policy)
    log, shown = run_log(root, 6), io.StringIO()
    log.console = StepConsole(6, shown)
    trainer = PolicyTrainer(settings, data(), roles, rewards(roles), log, max_logprob_gap=None)
    return trainer, shown


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_is_to_stop_does_so_and_the_checkpoint_before_is_whole(
    name: str, disk_of: Callable[[Case], Path], tmp_path: Path
) -> None:
    case = CASES[name]
    disk = disk_of(case)
    roles = SavingRoles(disk, case)
    trainer, _ = build(tmp_path, roles, "stop")
    with roles.now, pytest.raises(OutputError, match=case.said):
        trainer.run()
    newest, problems = Commits(disk).newest_complete()
    assert newest is not None
    assert (newest.step, problems) == (2, [])
    assert not [*disk.glob(".*")]


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_may_skip_one_goes_on_says_so_and_writes_the_next(
    name: str, disk_of: Callable[[Case], Path], tmp_path: Path
) -> None:
    case = CASES[name]
    disk = disk_of(case)
    trainer, shown = build(tmp_path, SavingRoles(disk, case), "skip")
    trainer.run()
    assert Commits(disk).steps() == [6, 2]
    assert not [*disk.glob(".*")]
    assert trainer.run_log.close()["skipped_checkpoints"] == 1
    skipped = [line["step"] for line in lines(tmp_path / "metrics.jsonl") if SKIPPED in line]
    assert skipped == [5]
    told = " ".join(shown.getvalue().split())
    assert told.count("the run continues without it") == 1
    assert case.said in told


def test_a_slow_disk_makes_the_run_wait_and_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "checkpoints"
    trainer, _ = build(tmp_path, SavingRoles(disk, Case(slow, "while", "")), "stop")
    trainer.run()
    assert Commits(disk).steps() == [6, 4]
    measured = lines(tmp_path / "metrics.jsonl")
    waits = {line["step"]: line.get("seconds/checkpoint_wait", 0.0) for line in measured}
    assert waits[5] > 0.3
    assert waits[3] < 0.2


def test_each_failure_is_counted_and_only_the_first_is_told(tmp_path: Path) -> None:
    disk = tmp_path / "checkpoints"
    roles = SavingRoles(disk, Case(failing, "while", ""))
    trainer, shown = build(tmp_path, roles, "skip")
    for step in (1, 2):
        with failing(disk):
            trainer.checkpoints.begin(step, {})
            assert trainer.checkpoints.finish() == {SKIPPED: 1.0}
    assert shown.getvalue().count("warning") == 1
    assert trainer.run_log.summary.skipped_checkpoints == 2


def test_what_cannot_fit_is_judged_by_the_tensors_and_then_by_the_last_checkpoint(
    tmp_path: Path,
) -> None:
    roles = SavingRoles(tmp_path / "checkpoints", Case(slow, "while", ""))
    trainer, _ = build(tmp_path, roles, "stop")
    assert roles.save_bytes() == 4 * ELEMENTS
    trainer.checkpoints.begin(2, {})
    trainer.checkpoints.finish()
    header = trainer.checkpoints.nbytes - 4 * ELEMENTS
    assert 0 < header < 200
