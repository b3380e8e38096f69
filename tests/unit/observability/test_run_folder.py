"""Output folders that cannot be used."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mindrl.errors import OutputError
from mindrl.observability.run_folder import Need, check_room


def check_writable(folder: Path, *, needed_bytes: int) -> None:
    check_room([Need(folder=folder, needed_bytes=needed_bytes, what="logs")])


def test_a_nested_folder_is_created_and_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    check_writable(folder, needed_bytes=1)
    check_writable(folder, needed_bytes=1)
    assert list(folder.iterdir()) == []


def test_one_byte_more_than_is_free_is_refused_with_both_sizes(tmp_path: Path) -> None:
    free_bytes = shutil.disk_usage(tmp_path).free
    # Twice what is free, since other processes write to the same disk meanwhile.
    with pytest.raises(
        OutputError,
        match=rf"the disk of {tmp_path} has [\d,.]+ MiB free; the run needs [\d,.]+ MiB: [\d,.]+ "
        f"MiB for logs in {tmp_path}$",
    ):
        check_writable(tmp_path, needed_bytes=2 * free_bytes)


def test_folders_of_one_disk_need_their_room_together(tmp_path: Path) -> None:
    half = shutil.disk_usage(tmp_path).free * 2 // 3
    needs = [
        Need(folder=tmp_path / name, needed_bytes=half, what=what)
        for name, what in (("run", "logs"), ("models", "2 x the exported actor"))
    ]
    for need in needs:
        check_room([need])
    with pytest.raises(OutputError, match=r"MiB for logs in .*/run, .* actor in .*models$"):
        check_room(needs)


def test_a_file_in_place_of_the_folder_or_of_its_parent_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(OutputError, match=rf"{file} cannot be written: File exists; .* 1\.0 MiB"):
        check_writable(file, needed_bytes=2**20)
    with pytest.raises(OutputError, match=f"{file}/run cannot be written: Not a directory"):
        check_writable(file / "run", needed_bytes=1)
    assert file.read_text() == "kept"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_folder_that_takes_no_files_is_refused_even_for_root() -> None:
    with pytest.raises(OutputError, match=r"^/proc/self/fd cannot be written: .*writable folder"):
        check_writable(Path("/proc/self/fd"), needed_bytes=1)


def test_a_disk_that_opens_files_but_takes_no_byte_is_refused_and_no_probe_is_left(
    tmp_path: Path,
) -> None:
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from mindrl.errors import OutputError\n"
        "from mindrl.observability.run_folder import Need, check_room\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "try: check_room([Need(folder=Path(sys.argv[1]), needed_bytes=1, what='logs')])\n"
        "except OutputError as error: raise SystemExit(f'refused: {error}')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert result.stderr.startswith(f"refused: {tmp_path} cannot be written: File too large; ")
    assert list(tmp_path.iterdir()) == []
