"""The checkpoints of a run: each folder is complete, or does not exist.

A checkpoint is written in `.step-N.writing`, file by file, each synced to disk before the next
step. A manifest then lists every file with its size and checksum, and a rename to `step-N` commits
the checkpoint. Only then are older ones removed, the manifest first, so that an interrupted removal
leaves nothing that looks complete. Imports no torch.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from mindrl.checkpoint.step_names import step_name, step_of, steps_in
from mindrl.errors import CheckpointError, OutputError
from mindrl.observability.progress import tick
from mindrl.observability.regular_files import open_regular, read_regular_text
from mindrl.observability.units import mib_text

CHECKPOINTS = "checkpoints"
"""Subfolder of a run folder."""
MANIFEST = "manifest.json"
STATE = "run_state.json"
_VERSION = 1
_REPORT, _BUILDING = "rank-{}.json", ".{}.writing"
_HASHED_BYTES = 16 << 20
_SYNCED_BYTES = 256 << 20
_READERS = 8
"""Files verified in parallel: one stream does not saturate a cluster's disk."""


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """Name, size and checksum of a written file."""

    name: str
    nbytes: int
    checksum: str
    """XXH3-128, in hexadecimal digits."""


@dataclass(frozen=True, kw_only=True)
class SavedFiles:
    """Files that a rank has written for a checkpoint."""

    files: tuple[WrittenFile, ...]
    updates: Mapping[str, int]
    """Optimizer steps of each model at the checkpoint."""
    seconds: float
    """Time of the writing, in parallel with other work."""
    waited_seconds: float
    """Time that other work waited for the writing."""
    failure: str | None = None
    """Error text if there are no files."""

    def report(self, folder: Path, *, rank: int, ranks: int) -> None:
        """Write a report file next to the rank's files, so that the committer sees that it is done.

        Raises:
            OSError: The report cannot be written.
        """
        building, report = folder / f".{rank}", folder / _REPORT.format(f"{rank:05}")
        building.write_text(json.dumps({"ranks": ranks, "saved": asdict(self)}), "utf-8")
        building.rename(report)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A committed folder with a readable manifest."""

    step: int
    folder: Path
    files: tuple[WrittenFile, ...]

    def paths(self, prefix: str) -> list[Path]:
        """Return the files whose names start with `prefix`."""
        return [self.folder / each.name for each in self.files if each.name.startswith(prefix)]

    def state(self) -> dict[str, Any]:
        """Return the run's state besides its tensors.

        Raises:
            CheckpointError: The state cannot be read.
        """
        return _read_object(self.folder / STATE)[1]


class Commits:
    """The folder with a run's checkpoints."""

    def __init__(self, root: Path) -> None:
        """Set the folder; it is created with the first checkpoint."""
        self.root = root

    def begin(self, step: int, nbytes: int = 0) -> Path:
        """Create a folder for the files of a step, and remove those that killed runs left.

        Raises:
            OutputError: The folder cannot be created, or its disk has less than `nbytes` free.
        """
        building = self._building(step)
        with writing(building):
            for left in self.root.glob(_BUILDING.format("*")):
                shutil.rmtree(left, ignore_errors=True)
            building.mkdir(parents=True)
            free = shutil.disk_usage(building).free
        if free < nbytes:
            self.abandon(step)
            raise OutputError(
                f"the checkpoint {self.root / step_name(step)} was not started: it needs "
                f"{mib_text(nbytes)}, and the disk has {mib_text(free)} free"
            )
        return building

    def reported(self, step: int) -> list[SavedFiles] | None:
        """Return the files of each rank for a step in progress; None until all have reported."""
        found: list[SavedFiles] = []
        with suppress(OSError, ValueError):
            while True:
                report = self._building(step) / _REPORT.format(f"{len(found):05}")
                loaded = json.loads(read_regular_text(report))
                files = tuple(WrittenFile(**each) for each in loaded["saved"].pop("files"))
                found.append(SavedFiles(files=files, **loaded["saved"]))
                if len(found) == loaded["ranks"]:
                    return found
        return None

    def commit(
        self, step: int, files: Iterable[WrittenFile], state: Mapping[str, object]
    ) -> Checkpoint:
        """Commit a checkpoint of files on disk; it replaces an older one of the same step.

        Raises:
            OutputError: A file has the wrong size or is missing, or writing fails.
        """
        building, target = self._building(step), self.root / step_name(step)
        with writing(target):
            listed = (*files, _write_object(building / STATE, state))
            for each in listed:
                found = (building / each.name).stat().st_size
                if found != each.nbytes:
                    raise OutputError(
                        f"{building / each.name} has {found} bytes, but {each.nbytes} "
                        "were written; all nodes must share this folder"
                    )
            for report in building.glob(_REPORT.format("*")):
                report.unlink()
            _write_object(building / MANIFEST, _manifest(step, listed))
            sync_folder(building)
            _remove(target)
            building.rename(target)
            sync_folder(self.root)
        return Checkpoint(step=step, folder=target, files=listed)

    def abandon(self, step: int) -> None:
        """Remove the files of a step that will not be committed."""
        shutil.rmtree(self._building(step), ignore_errors=True)

    def prune(self, keep: Iterable[int]) -> None:
        """Remove the checkpoints of all other steps.

        Raises:
            OutputError: A checkpoint cannot be removed.
        """
        for step in {*self.steps()} - {*keep}:
            with writing(self.root / step_name(step)):
                _remove(self.root / step_name(step))

    def steps(self) -> list[int]:
        """Return the committed steps, the newest first.

        Raises:
            CheckpointError: The folder exists, but cannot be listed.
        """
        try:
            found = steps_in(self.root)
            return [step for step in reversed(found) if (self.root / step_name(step)).is_dir()]
        except OSError as error:
            why = error.strerror or error
            raise CheckpointError(f"cannot list {self.root}: {why}") from error

    def read(self, step: int) -> Checkpoint:
        """Read the manifest of a checkpoint, and check the sizes of its files.

        Raises:
            CheckpointError: A file is missing or has another size, or the manifest is invalid.
        """
        return read_checkpoint(self.root / step_name(step))

    def newest_complete(
        self, steps: Sequence[int] | None = None, damaged: Mapping[Path, str] = {}
    ) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest checkpoint whose files are all there, by manifest and sizes.

        Ranks compare the checksums of tensors, with `verify_share`.

        Args:
            steps: Candidates, the newest first; None for all.
            damaged: Folders in which ranks found damage, with the problem.

        Returns:
            The checkpoint, or None; and the problem of each newer one.
        """
        problems = []
        for step in self.steps() if steps is None else steps:
            if (folder := self.root / step_name(step)) in damaged:
                problems.append(damaged[folder])
                continue
            try:
                found = self.read(step)
                verify(found.folder, [each for each in found.files if each.name == STATE])
            except CheckpointError as error:
                problems.append(str(error))
            else:
                return found, problems
        return None, problems

    def _building(self, step: int) -> Path:
        return self.root / _BUILDING.format(step_name(step))


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the manifest of a folder, and check the sizes of its files.

    Raises:
        CheckpointError: A file is missing or has another size, or the manifest is invalid.
    """
    path = folder / MANIFEST
    text, values = _read_object(path)
    if values.get("version") != _VERSION:
        raise CheckpointError(f"{path}: version={values.get('version')!r} must be {_VERSION}")
    try:
        step = int(values["step"])
        files = tuple(WrittenFile(**each) for each in values["files"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a manifest: {error}") from error
    if _text(_manifest(step, files)) != text:
        raise CheckpointError(f"{path} is damaged: its checksum does not match its text")
    if step_of(folder) not in (None, step):
        raise CheckpointError(f"{path}: step={step} does not match the folder")
    for each in files:
        if Path(each.name).name != each.name:
            raise CheckpointError(f"{path}: {each.name!r} must be a file in its folder")
        _check_size(folder, each)
    return Checkpoint(step=step, folder=folder, files=files)


def verify_share(folder: Path, rank: int, ranks: int) -> int:
    """Compare a rank's share of the tensor files with their checksums; return its bytes.

    Files are assigned by name: in the layout of the save a rank verifies the files that it reads.

    Raises:
        CheckpointError: A file differs from the written one; names the file.
    """
    files = [each for each in read_checkpoint(folder).files if each.name != STATE]
    share = sorted(files, key=lambda each: each.name)[rank::ranks]
    verify(folder, share)
    return sum(each.nbytes for each in share)


def verify(folder: Path, files: Sequence[WrittenFile]) -> None:
    """Compare files with their checksums.

    Raises:
        CheckpointError: A file differs from the written one; names the file.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        for _ in pool.map(partial(_verify_one, folder), files):
            pass


def _verify_one(folder: Path, file: WrittenFile) -> None:
    path = folder / file.name
    try:
        found = checksum_of(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if found != file.checksum:
        raise CheckpointError(
            f"{path} is damaged: its checksum is {found}, expected {file.checksum}"
        )


def checksum_of(path: Path) -> str:
    """Return the checksum of a file on disk.

    Raises:
        OSError: The file cannot be read.
    """
    checksum = xxhash.xxh3_128()
    with open_regular(path) as file:
        while part := file.read(_HASHED_BYTES):
            tick()
            checksum.update(part)
    return checksum.hexdigest()


def write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> WrittenFile:
    """Write a new file from consecutive parts, and wait until it is on disk.

    Raises:
        OSError: The file cannot be written.
    """
    checksum, nbytes, synced = xxhash.xxh3_128(), 0, 0
    with path.open("xb") as file:
        for part in _pieces(parts):
            tick()
            file.write(part)
            checksum.update(part)
            nbytes += len(part)
            if nbytes - synced >= _SYNCED_BYTES:
                # One sync at the end takes minutes on a slow disk, without progress.
                _sync(file)
                synced = nbytes
        _sync(file)
    return WrittenFile(name=path.name, nbytes=nbytes, checksum=checksum.hexdigest())


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _pieces(parts: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for part in parts:
        for start in range(0, len(part), _SYNCED_BYTES):
            yield memoryview(part)[start : start + _SYNCED_BYTES]


def _check_size(folder: Path, file: WrittenFile) -> None:
    path = folder / file.name
    try:
        found = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if found != file.nbytes:
        raise CheckpointError(f"{path} has {found} bytes, but {file.nbytes} were written")


def _read_object(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a file's text, and the JSON object in it."""
    try:
        text = read_regular_text(path)
        values = json.loads(text)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must contain a JSON object")
    return text, values


def _manifest(step: int, files: Iterable[WrittenFile]) -> dict[str, object]:
    """Return the content of a manifest, followed by the checksum of its own text."""
    values = {"version": _VERSION, "step": step, "files": [asdict(each) for each in files]}
    return values | {"checksum": xxhash.xxh3_128(_text(values).encode()).hexdigest()}


def _text(values: Mapping[str, object]) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def _write_object(path: Path, values: Mapping[str, object]) -> WrittenFile:
    path.unlink(missing_ok=True)  # left by an attempt that failed
    return write_synced(path, [_text(values).encode()])


def _remove(folder: Path) -> None:
    """Remove a checkpoint, the manifest first, so that no remainder looks complete."""
    if folder.is_dir():
        (folder / MANIFEST).unlink(missing_ok=True)
        sync_folder(folder)
        shutil.rmtree(folder)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn an OSError into an error that names the checkpoint."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write the checkpoint {target}: {error}") from error
