"""Output folders of a run, checked before anything expensive starts."""

import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mindrl.errors import OutputError
from mindrl.observability.output_files import output_errors
from mindrl.observability.units import mib_text


@dataclass(frozen=True, kw_only=True)
class Need:
    """Required room in a folder."""

    folder: Path
    needed_bytes: int
    what: str
    """For messages, such as `logs and samples`."""


def best_folder(model: Path) -> Path:
    """Return the folder of the best exported model, next to that of the newest."""
    return model.with_name(f"{model.name}_best")


def check_room(needs: Sequence[Need]) -> None:
    """Create the folders, check that they are writable and that each disk has enough room.

    Raises:
        OutputError: if a folder is a file, or cannot be created or written, or if a disk has less
            free than its folders need together.
    """
    by_disk: defaultdict[int, list[Need]] = defaultdict(list)
    for need in needs:
        _check_writable(need)
        by_disk[need.folder.stat().st_dev].append(need)
    for needs_of_disk in by_disk.values():
        folder = needs_of_disk[0].folder
        free_bytes = shutil.disk_usage(folder).free
        needed_bytes = sum(need.needed_bytes for need in needs_of_disk)
        if free_bytes < needed_bytes:
            parts = ", ".join(
                f"{mib_text(need.needed_bytes)} for {need.what} in {need.folder}"
                for need in needs_of_disk
            )
            raise OutputError(
                f"the disk of {folder} has {mib_text(free_bytes)} free; the run needs "
                f"{mib_text(needed_bytes)}: {parts}"
            )


def _check_writable(need: Need) -> None:
    probe = need.folder / f".probe-{os.getpid()}"
    asked = f"the run needs a writable folder with {mib_text(need.needed_bytes)} free"
    with output_errors(need.folder, asked):
        need.folder.mkdir(parents=True, exist_ok=True)
        try:
            with probe.open("wb") as file:
                file.write(b"mindrl checks that this folder can be written\n")
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
