"""Weights: exported folders; each is valid once its marker exists."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import xxhash

from mindrl.checkpoint.commits import checksum_of
from mindrl.errors import SpoolError
from mindrl.spool.files import remove, sealed, sync_tree, unsealed, write_over

_MARKER = re.compile(r"v(\d{8})\.json")


@dataclass(frozen=True, kw_only=True)
class KnownLogprobs:
    """Log-probs of some tokens under a version of the weights, computed by the train job."""

    rows: list[list[int]]
    """Token ids of a prompt and of a response up to the token."""
    logprobs: list[float]
    """Log-prob of the last token of each row, in nats."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A complete version."""

    version: int
    """Step after which the trainer had these weights."""
    folder: Path
    files: dict[str, str]
    """Checksums by file name."""
    known: KnownLogprobs | None = field(default=None, compare=False)
    """None for the initial weights of a run."""

    @property
    def name(self) -> str:
        """Unique name, also among folders of the same version."""
        return self.folder.name

    def verify(self) -> None:
        """Verify the checksums of all files.

        Raises:
            SpoolError: One has been changed.
            OSError: One is missing.
        """
        for name, checksum in self.files.items():
            if checksum_of(self.folder / name) != checksum:
                raise SpoolError(f"{self.folder / name} is damaged: its checksum does not match")


@dataclass(frozen=True)
class WeightFolders:
    """The folder of all versions."""

    root: Path

    def publish(
        self, version: int, export: Callable[[Path], None], known: KnownLogprobs | None = None
    ) -> Weights:
        """Export weights, and mark them as complete, with their known log-probs.

        If the same weights exist already, nothing changes; different ones of the same version are
        replaced, in a folder with another name.

        Raises:
            OSError: It cannot be written; the previous weights are kept.
            OutputError: As raised by the export.
        """
        building = self.root / f".v{version:08}.building"
        shutil.rmtree(building, ignore_errors=True)
        export(building)
        sync_tree(building)
        files = {
            path.relative_to(building).as_posix(): checksum_of(path)
            for path in sorted(building.rglob("*"))
            if path.is_file()
        }
        whole = xxhash.xxh3_64_hexdigest(json.dumps(files).encode("ascii"))
        folder = self.root / f"v{version:08}-{whole}"
        before = self.find(version)
        if before is not None and before.folder == folder:
            shutil.rmtree(building)
            return before
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
        marker = {
            "folder": folder.name,
            "files": files,
            "known": None if known is None else asdict(known),
        }
        write_over(self._marker(version), sealed(json.dumps(marker).encode("ascii")))
        if before is not None:
            shutil.rmtree(before.folder, ignore_errors=True)
        return Weights(version=version, folder=folder, files=files, known=known)

    def find(self, version: int) -> Weights | None:
        """Return a version; None if it does not exist.

        Raises:
            SpoolError: Its marker is damaged.
        """
        try:
            marker = json.loads(unsealed(self._marker(version)))
        except FileNotFoundError:
            return None
        known = marker.get("known")
        return Weights(
            version=version,
            folder=self.root / marker["folder"],
            files=marker["files"],
            known=None if known is None else KnownLogprobs(**known),
        )

    def versions(self) -> list[int]:
        """Return the existing versions, the oldest first."""
        found = (_MARKER.fullmatch(path.name) for path in self.root.iterdir())
        return sorted(int(each[1]) for each in found if each)

    def forget(self, version: int) -> None:
        """Remove older versions: the marker first, so that no incomplete version looks complete.

        Also removes folders of a killed train job.
        """
        for each in self.versions():
            if each < version:
                remove(self._marker(each))
        kept = {found.name for each in self.versions() if (found := self.find(each))}
        for path in self.root.iterdir():
            if path.is_dir() and path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def _marker(self, version: int) -> Path:
        return self.root / f"v{version:08}.json"
