"""Find the sources of the packages of the NPU contract."""

import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindrl.platform.npu_versions import (
    MINDSPEED,
    PINS,
    TORCH,
    TORCHVISION,
    TRITON,
    VLLM,
    VLLM_ASCEND,
    Pin,
)
from npu_contract.package_index import download, published_file
from npu_contract.published_source import (
    PublishedSource,
    SourceUnavailableError,
    installed_source,
    open_source,
)

CHECKED_PINS = tuple(pin for pin in PINS if pin not in (TORCH, TORCHVISION, TRITON))
"""The tests of other devices run torch; mindrl uses no names of the other two."""

_INSTALLED = frozenset({"ray", "megatron-core"})
"""Packages with the same pinned version on every device."""
_ARCHIVES = (
    "https://github.com/Ascend/MindSpeed/archive/{commit}.zip",
    "https://gitee.com/ascend/MindSpeed/repository/archive/{commit}.zip",
)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Sources that were read, and failures."""

    packages: Mapping[str, PublishedSource]
    """Sources by import name."""
    unavailable: Mapping[str, str]
    """Reasons of failures, by distribution name."""


def contract_sources(
    folder: Path,
    *,
    given: Mapping[str, Path] | None = None,
    index: str | None = None,
    pins: Sequence[Pin] = CHECKED_PINS,
) -> Sources:
    """Open the source of every package of the contract.

    Args:
        folder: Folder for downloads.
        given: Files, folders or repositories to read instead, by distribution name.
        index: Address of the package index; None for pip's.
        pins: The packages.
    """
    packages: dict[str, PublishedSource] = {}
    unavailable: dict[str, str] = {}
    for pin in pins:
        try:
            packages[pin.package] = _source(pin, folder, given or {}, index)
        except SourceUnavailableError as error:
            unavailable[pin.distribution] = str(error)
    if VLLM.distribution in unavailable and VLLM_ASCEND.module in packages:
        del packages[VLLM_ASCEND.module]
        unavailable[VLLM_ASCEND.distribution] = "its classes extend those of vllm, see there"
    return Sources(packages=packages, unavailable=unavailable)


def _source(
    pin: Pin, folder: Path, given: Mapping[str, Path], index: str | None
) -> PublishedSource:
    if pin.distribution in given:
        return open_source(given[pin.distribution], commit=pin.commit)
    if pin.distribution in _INSTALLED:
        return _installed(pin)
    if pin is MINDSPEED:
        return _archived(pin, folder)
    return open_source(published_file(pin.distribution, pin.version, folder=folder, index=index))


def _installed(pin: Pin) -> PublishedSource:
    spec = importlib.util.find_spec(pin.package)
    if spec is None or not spec.submodule_search_locations:
        raise SourceUnavailableError(f"{pin.distribution} is not installed here")
    found = importlib.metadata.version(pin.distribution)
    if found != pin.version:
        raise SourceUnavailableError(f"{pin.requirement} is pinned, {found} is installed here")
    return installed_source(Path(next(iter(spec.submodule_search_locations))))


def _archived(pin: Pin, folder: Path) -> PublishedSource:
    """Open a commit's archive; a download that is not an archive is not kept."""
    file, reasons = folder / f"{pin.distribution}-{pin.commit}.zip", []
    for address in _ARCHIVES:
        try:
            if not file.is_file():
                download(address.format(commit=pin.commit), file)
            return open_source(file)
        except SourceUnavailableError as error:
            file.unlink(missing_ok=True)
            reasons.append(f"{address.split('/')[2]}: {error}")
    raise SourceUnavailableError("; ".join(reasons))
