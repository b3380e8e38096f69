"""The folder a run writes into, checked before anything expensive starts."""

import os
import shutil
from pathlib import Path

from mindrl.errors import OutputError
from mindrl.observability.output_errors import output_errors

PROBE = b"mindrl checks that this folder can be written\n"


def check_writable(folder: Path, *, needed_bytes: int) -> None:
    """Create the folder and prove that it takes files and has space for the run.

    Raises:
        OutputError: if it is a file, cannot be created or written, or has less than
            `needed_bytes` free.
    """
    need = f"the run needs a folder that takes files, with {_mebibytes(needed_bytes)} free"
    probe = folder / f".probe-{os.getpid()}"
    with output_errors(folder, need):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with probe.open("wb") as file:
                file.write(PROBE)
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
        free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise OutputError(f"{folder} has {_mebibytes(free_bytes)} free; {need}")


def _mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"
