"""Download the published file of a package, verify and keep it, without running its code.

pip would build a source archive only to find its name. This module uses the JSON interface of the
index (PEP 691), and the smallest file of a version, which has the same Python sources as the
others.
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
    """Return the address of pip's index.

    Raises:
        SourceUnavailableError: pip is missing.
    """
    try:
        command = import_module("pip._internal.commands").create_command("download")
        return str(command.parse_args([])[0].index_url)
    except (ImportError, AttributeError) as error:
        raise SourceUnavailableError(
            f"pip is missing, which has the address of the index: {error}"
        ) from error


def published_file(name: str, version: str, *, folder: Path, index: str | None = None) -> Path:
    """Return a file of a published version, from the folder if it exists there.

    Args:
        name: Name of the package.
        version: Version of the package.
        folder: Folder in which files are kept.
        index: Address of the index; None for pip's.

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
    """Download and verify a file; it is complete or missing.

    Raises:
        SourceUnavailableError: The download failed, or the contents differ.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    begun = target.with_name(f"{target.name}.{time.time_ns()}.part")
    try:
        digest = _write(address, begun)
        if sha256 and digest != sha256:
            raise SourceUnavailableError(f"{target.name}: its checksum is not that of the index")
        begun.replace(target)
    except (OSError, ValueError) as error:
        raise SourceUnavailableError(f"{target.name}: cannot be downloaded: {error}") from error
    finally:
        begun.unlink(missing_ok=True)


def _write(address: str, target: Path) -> str:
    """Write the response of an address, and return its SHA-256."""
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
            f"{name}: the package index does not respond: {error}"
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
        raise ValueError(f"not a web address: {address}")
    request = urllib.request.Request(address, headers={"Accept": accept})  # noqa: S310 - see above
    return urllib.request.urlopen(request, timeout=_ANSWER_SECONDS)  # noqa: S310 - see above
