"""Read the files of a published package in place, without importing or unpacking it."""

import io
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from mindrl.errors import MindrlError

_KEPT = frozenset({".py", ".pyi", ".yaml", ".txt", ".md", ".sh", ".so", ""})
"""Suffixes of the files that are read from a compressed archive, which is read sequentially."""
_GIT_SECONDS = 60


class SourceUnavailableError(MindrlError):
    """The source of a package cannot be found or read."""


class PublishedSource:
    """The files of one package, by their installed paths."""

    def __init__(self, origin: str, names: Iterable[str], read: Callable[[str], bytes]) -> None:
        """Store the files `names`, which `read` returns.

        Args:
            origin: Description of their origin.
            names: Paths with slashes, from the folder that is on the import path.
            read: Returns the bytes of a path.
        """
        self.origin = origin
        self.names = frozenset(names)
        self._read = read
        self._texts: dict[str, str] = {}

    def data(self, name: str) -> bytes:
        """Return the bytes of a file."""
        return self._read(name)

    def text(self, name: str) -> str:
        """Return the text of a file."""
        if name not in self._texts:
            self._texts[name] = self.data(name).decode("utf-8", errors="replace")
        return self._texts[name]

    def with_suffix(self, *suffixes: str, below: str = "") -> list[str]:
        """List the files with one of the suffixes in a folder, in order of their names."""
        found = (name for name in self.names if name.startswith(below))
        return sorted(name for name in found if name.endswith(suffixes))


def open_source(path: Path, *, commit: str = "") -> PublishedSource:
    """Open a wheel, a source archive, a folder, or a commit of a git repository.

    Args:
        path: Its kind is derived from its name and its contents.
        commit: Commit of a repository from which files are read, independent of the checkout.

    Raises:
        SourceUnavailableError: The kind is unknown, or the source cannot be read.
    """
    try:
        if path.is_dir():
            return _commit(path, commit) if commit and _is_repository(path) else _folder(path)
        if path.suffix == ".whl":
            return _zip(path, strip=0)
        if path.suffix == ".zip":
            return _zip(path, strip=1)
        return _tar(path.name, path.read_bytes(), strip=1)
    except (OSError, zipfile.BadZipFile, tarfile.TarError, subprocess.TimeoutExpired) as error:
        raise SourceUnavailableError(f"{path}: cannot be read: {error}") from error


def installed_source(path: Path) -> PublishedSource:
    """Open the folder of an installed package; its name is part of the paths."""
    files = {f"{path.name}/{file.relative_to(path).as_posix()}": file for file in _files(path)}
    return PublishedSource("installed", files, lambda name: files[name].read_bytes())


def _zip(path: Path, *, strip: int) -> PublishedSource:
    archive = zipfile.ZipFile(path)
    members = {
        _stripped(member.filename, strip): member
        for member in archive.infolist()
        if not member.is_dir()
    }
    return PublishedSource(path.name, members, lambda name: archive.read(members[name]))


def _tar(origin: str, data: bytes, *, strip: int) -> PublishedSource:
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            content = archive.extractfile(member) if _is_kept(member) else None
            if content is not None:
                files[_stripped(member.name, strip)] = content.read()
    return PublishedSource(origin, files, files.__getitem__)


def _is_kept(member: tarfile.TarInfo) -> bool:
    return member.isfile() and PurePosixPath(member.name).suffix in _KEPT


def _folder(path: Path) -> PublishedSource:
    files = {file.relative_to(path).as_posix(): file for file in _files(path)}
    return PublishedSource(path.name, files, lambda name: files[name].read_bytes())


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()]


def _commit(path: Path, commit: str) -> PublishedSource:
    command = ["git", "-C", str(path), "archive", "--format=tar", commit]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=_GIT_SECONDS)
    if ended.returncode:
        reason = ended.stderr.decode(errors="replace").strip()
        raise SourceUnavailableError(f"{path}: commit {commit} cannot be read: {reason}")
    return _tar(f"commit {commit[:12]}", ended.stdout, strip=0)


def _is_repository(path: Path) -> bool:
    return (path / ".git").exists() or (path / "HEAD").is_file()


def _stripped(name: str, folders: int) -> str:
    return "/".join(PurePosixPath(name).parts[folders:])
