"""Downloads the published file of a package, verified and kept, without running any of its code.

pip would run the build of a source archive only to learn its name. Here the index is asked by its
JSON interface (PEP 691), and the smallest file of a version is taken: its Python sources are those
of all files of that version.
"""

import hashlib
import json
import re
import time
import urllib.request
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from npu_contract.published_source import SourceUnavailableError

_JSON = "application/vnd.pypi.simple.v1+json"
_SUFFIXES = (".whl", ".tar.gz")
_ANSWER_SECONDS = 10
_DOWNLOAD_SECONDS = 180
_CHUNK = 1 << 20


def index_address() -> str:
    """Return the address of the index that pip is set to.

    Raises:
        SourceUnavailableError: There is no pip to ask.
    """
    try:
        command = import_module("pip._internal.commands").create_command("download")
        return str(command.parse_args([])[0].index_url)
    except (ImportError, AttributeError) as error:
        raise SourceUnavailableError(
            f"pip, which knows the index, is not there: {error}"
        ) from error


def published_file(name: str, version: str, *, folder: Path, index: str | None = None) -> Path:
    """Return a file of a published version, from the folder if it is there already.

    Args:
        name: Of the package.
        version: Of the package.
        folder: Where files are kept between calls.
        index: Address of the index; pip's own without one.

    Raises:
        SourceUnavailableError: The index cannot be reached or does not have the version.
    """
    normal = re.sub(r"[-_.]+", "_", name).lower()
    kept = sorted(folder.iterdir()) if folder.is_dir() else []
    for file in kept:
        if file.name.endswith(_SUFFIXES) and _version(file.name, normal) == version:
            return file
    found = _smallest(_files(name, index or index_address()), normal, version)
    target = folder / str(found["filename"])
    download(str(found["url"]), target, sha256=str(found["hashes"]["sha256"]))
    return target


def download(address: str, target: Path, *, sha256: str = "") -> None:
    """Download a file; it is there completely and verified, or not at all.

    Raises:
        SourceUnavailableError: It cannot be had in time, or has other contents.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    begun = target.with_name(f"{target.name}.{time.time_ns()}.part")
    try:
        digest = _write(address, begun)
        if sha256 and digest != sha256:
            raise SourceUnavailableError(f"{target.name}: not the contents that the index promises")
        begun.replace(target)
    except (OSError, ValueError) as error:
        raise SourceUnavailableError(f"{target.name}: cannot be downloaded: {error}") from error
    finally:
        begun.unlink(missing_ok=True)


def _write(address: str, target: Path) -> str:
    """Write what an address answers, and return its SHA-256."""
    digest, end = hashlib.sha256(), time.monotonic() + _DOWNLOAD_SECONDS
    with _open(address) as answer, target.open("wb") as file:
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            digest.update(chunk)
            if time.monotonic() > end:
                raise TimeoutError(f"not complete after {_DOWNLOAD_SECONDS} s")
    return digest.hexdigest()


def _version(filename: str, name: str) -> str:
    rest = filename.lower().replace("-", "_").removeprefix(f"{name}_").removesuffix(".tar.gz")
    return rest.split("_")[0]


def _files(name: str, index: str) -> list[Mapping[str, Any]]:
    try:
        with _open(f"{index.rstrip('/')}/{name}/", accept=_JSON) as answer:
            return list(json.load(answer)["files"])
    except (OSError, ValueError, KeyError) as error:
        raise SourceUnavailableError(
            f"{name}: the package index does not answer: {error}"
        ) from error


def _smallest(files: list[Mapping[str, Any]], name: str, version: str) -> Mapping[str, Any]:
    fitting = [
        file
        for file in files
        if str(file["filename"]).endswith(_SUFFIXES)
        and _version(str(file["filename"]), name) == version
        and "sha256" in file["hashes"]
    ]
    if not fitting:
        raise SourceUnavailableError(f"{name}: the package index has no version {version}")
    return min(fitting, key=lambda file: (file.get("size") or 2**62, file["filename"]))


def _open(address: str, *, accept: str = "*/*") -> Any:
    if not address.startswith(("https://", "http://")):
        raise ValueError(f"no web address: {address}")
    request = urllib.request.Request(address, headers={"Accept": accept})  # noqa: S310 - see above
    return urllib.request.urlopen(request, timeout=_ANSWER_SECONDS)  # noqa: S310 - see above
