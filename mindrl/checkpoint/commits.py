"""The checkpoints of a run: each is a folder that is there whole, or not at all.

A checkpoint is written in `.step-N.writing`, file by file, each of them on the disk before the
next word is said of it. A manifest then names every file with its size and checksum, and one
renaming to `step-N` is the commit. Only behind it are older ones removed, the manifest first, so
that a removal that is cut short leaves nothing that looks whole. Imports no torch.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from mindrl.errors import CheckpointError, OutputError
from mindrl.observability.progress import tick
from mindrl.observability.units import mib_text

CHECKPOINTS = "checkpoints"
"""In a run folder."""
MANIFEST = "manifest.json"
STATE = "run_state.json"
_VERSION = 1
_REPORT = "rank-{}.json"
_STEP = re.compile(r"step-(\d{8})")
_HASHED_BYTES = 16 << 20
_SYNCED_BYTES = 256 << 20
_READERS = 8
"""Files that are read at once to be verified: one stream does not use up a disk of a cluster."""


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """A file as it was written."""

    name: str
    nbytes: int
    checksum: str
    """XXH3 of 128 bits, in hexadecimal digits."""


@dataclass(frozen=True, kw_only=True)
class SavedFiles:
    """What a rank has written of a checkpoint."""

    files: tuple[WrittenFile, ...]
    updates: Mapping[str, int]
    """Optimizer steps that each model had taken."""
    seconds: float
    """That the writing took, beside other work."""
    waited_seconds: float
    """That other work waited for it."""
    failure: str | None = None
    """Why there are no files."""

    def report(self, folder: Path, *, rank: int, ranks: int) -> None:
        """Tell whoever commits, in a file beside those written, that one of so many ranks is done.

        Raises:
            OSError: It cannot be written.
        """
        building, report = folder / f".{rank}", folder / _REPORT.format(f"{rank:05}")
        building.write_text(json.dumps({"ranks": ranks, "saved": asdict(self)}), "utf-8")
        building.rename(report)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A committed folder whose manifest could be read."""

    step: int
    folder: Path
    files: tuple[WrittenFile, ...]

    def paths(self, prefix: str) -> list[Path]:
        """Return the files whose names begin so."""
        return [self.folder / each.name for each in self.files if each.name.startswith(prefix)]

    def state(self) -> dict[str, Any]:
        """Read what is known of the run besides its tensors.

        Raises:
            CheckpointError: It cannot be read.
        """
        return _read_object(self.folder / STATE)[1]


class Commits:
    """The folder that holds the checkpoints of a run."""

    def __init__(self, root: Path) -> None:
        """Name the folder; it is made with the first checkpoint."""
        self.root = root

    def begin(self, step: int, nbytes: int = 0) -> Path:
        """Return a new folder for the files of a step; what an earlier run left there is gone.

        Raises:
            OutputError: It cannot be made, or its disk has no room for so many bytes.
        """
        building = self._building(step)
        with writing(building):
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir(parents=True)
            free = shutil.disk_usage(building).free
        if free < nbytes:
            self.abandon(step)
            raise OutputError(
                f"the checkpoint {self.root / step_name(step)} was not begun: it takes "
                f"{mib_text(nbytes)}, and its disk has {mib_text(free)} free"
            )
        return building

    def reported(self, step: int) -> list[SavedFiles] | None:
        """Return what each rank has written of a step that was begun; None before all have."""
        found: list[SavedFiles] = []
        with suppress(OSError, ValueError):
            while True:
                report = self._building(step) / _REPORT.format(f"{len(found):05}")
                told = json.loads(report.read_text())
                files = tuple(WrittenFile(**each) for each in told["saved"].pop("files"))
                found.append(SavedFiles(files=files, **told["saved"]))
                if len(found) == told["ranks"]:
                    return found
        return None

    def commit(
        self, step: int, files: Iterable[WrittenFile], state: Mapping[str, object]
    ) -> Checkpoint:
        """Make a checkpoint of the files that were written, each on the disk already.

        An older one of the same step is replaced.

        Raises:
            OutputError: A file is not where it was written, or something cannot be written.
        """
        building, target = self._building(step), self.root / step_name(step)
        with writing(target):
            listed = (*files, _write_object(building / STATE, state))
            for each in listed:
                found = (building / each.name).stat().st_size
                if found != each.nbytes:
                    raise OutputError(
                        f"{building / each.name} has {found} bytes, {each.nbytes} were written: "
                        "all nodes must see one folder"
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
        """Remove what was written of a step that is not going to be committed."""
        shutil.rmtree(self._building(step), ignore_errors=True)

    def prune(self, keep: Iterable[int]) -> None:
        """Remove the checkpoints of all other steps.

        Raises:
            OutputError: One cannot be removed.
        """
        for step in {*self.steps()} - {*keep}:
            with writing(self.root / step_name(step)):
                _remove(self.root / step_name(step))

    def steps(self) -> list[int]:
        """Return the steps that have been committed, the newest first."""
        found = reversed(steps_in(self.root))
        return [step for step in found if (self.root / step_name(step)).is_dir()]

    def read(self, step: int) -> Checkpoint:
        """Read the manifest of a checkpoint, and see that its files are as long as it says.

        Raises:
            CheckpointError: A file is missing or has another length, or the manifest is no good.
        """
        return read_checkpoint(self.root / step_name(step))

    def newest_whole(
        self, steps: Sequence[int] | None = None
    ) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest checkpoint whose files all have their checksums.

        Args:
            steps: Those that may be taken, the newest first; None for all.

        Returns:
            None where there is none; and what is wrong with each newer one.
        """
        problems = []
        for step in self.steps() if steps is None else steps:
            try:
                found = self.read(step)
                verify(found.folder, found.files)
            except CheckpointError as error:
                problems.append(str(error))
            else:
                return found, problems
        return None, problems

    def _building(self, step: int) -> Path:
        return self.root / f".{step_name(step)}.writing"


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the manifest of a folder, and see that its files are as long as it says.

    Raises:
        CheckpointError: A file is missing or has another length, or the manifest is no good.
    """
    path = folder / MANIFEST
    text, values = _read_object(path)
    if values.get("version") != _VERSION:
        raise CheckpointError(f"{path}: version={values.get('version')!r} must be {_VERSION}")
    try:
        step = int(values["step"])
        files = tuple(WrittenFile(**each) for each in values["files"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is no manifest: {error}") from error
    if _text(_manifest(step, files)) != text:
        raise CheckpointError(f"{path} is damaged: its checksum is not that of its text")
    if step_of(folder) not in (None, step):
        raise CheckpointError(f"{path}: step={step} is not the folder's")
    for each in files:
        if Path(each.name).name != each.name:
            raise CheckpointError(f"{path}: {each.name!r} must be a file of its folder")
        _check_size(folder, each)
    return Checkpoint(step=step, folder=folder, files=files)


def verify(folder: Path, files: Sequence[WrittenFile]) -> None:
    """Compare files with their checksums.

    Raises:
        CheckpointError: One is not what was written; with its name.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        for _ in pool.map(partial(_verify_one, folder), files):
            pass


def _verify_one(folder: Path, file: WrittenFile) -> None:
    path = folder / file.name
    try:
        found = checksum_of(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if found != file.checksum:
        raise CheckpointError(
            f"{path} is damaged: its checksum is {found}, that of what was written is "
            f"{file.checksum}"
        )


def checksum_of(path: Path) -> str:
    """Return the checksum of a file as it lies on the disk.

    Raises:
        OSError: The file cannot be read.
    """
    checksum = xxhash.xxh3_128()
    with path.open("rb") as file:
        while part := file.read(_HASHED_BYTES):
            checksum.update(part)
    return checksum.hexdigest()


def write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> WrittenFile:
    """Write a new file, one part behind the other, and wait until the disk has it.

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
                # Left to the end, it is minutes on a slow disk in which nothing seems to get on.
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


def step_of(folder: Path) -> int | None:
    """Return the step of a checkpoint by the name of its folder; None where that is another."""
    name = _STEP.fullmatch(folder.name)
    return None if name is None else int(name[1])


def steps_in(folder: Path, suffix: str = "") -> list[int]:
    """Return the steps that what lies in a folder is named by, the first one first."""
    names = (path.name.removesuffix(suffix) for path in folder.glob(f"*{suffix}"))
    return sorted(int(found[1]) for found in map(_STEP.fullmatch, names) if found)


def step_name(step: int) -> str:
    """Return the name, without a suffix, of what is kept of a step."""
    return f"step-{step:08}"


def _check_size(folder: Path, file: WrittenFile) -> None:
    path = folder / file.name
    try:
        found = path.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if found != file.nbytes:
        raise CheckpointError(f"{path} has {found} bytes, {file.nbytes} were written")


def _read_object(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a file's text, and the object that it is."""
    try:
        text = path.read_text("utf-8")
        values = json.loads(text)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return text, values


def _manifest(step: int, files: Iterable[WrittenFile]) -> dict[str, object]:
    """Return what a manifest says, behind it the checksum of its own text."""
    values = {"version": _VERSION, "step": step, "files": [asdict(each) for each in files]}
    return values | {"checksum": xxhash.xxh3_128(_text(values).encode()).hexdigest()}


def _text(values: Mapping[str, object]) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def _write_object(path: Path, values: Mapping[str, object]) -> WrittenFile:
    return write_synced(path, [_text(values).encode()])


def _remove(folder: Path) -> None:
    """Remove a checkpoint, in an order in which no half of it looks whole."""
    if folder.is_dir():
        (folder / MANIFEST).unlink(missing_ok=True)
        sync_folder(folder)
        shutil.rmtree(folder)


def sync_folder(folder: Path) -> None:
    """Wait until the disk knows which files a folder has."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Say in the words of the user what keeps a checkpoint from being written."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"the checkpoint {target} could not be written: {error}") from error
