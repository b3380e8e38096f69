"""Only regular files are read; any other kind is refused before it is opened."""

import os
import socket
import stat
from pathlib import Path

import pytest

from mindrl.checkpoint.commits import MANIFEST, Commits, write_synced
from mindrl.errors import CheckpointError, MindrlError, ModelError, OutputError
from mindrl.models.config_file import read_config
from mindrl.observability.output_files import forget_later_steps
from mindrl.observability.regular_files import open_regular, read_regular_text
from mindrl.report.run_record import read_run

# Opened, the FIFO would be waited at and the device be read for ever.
pytestmark = pytest.mark.timeout(20)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def test_a_file_is_read_and_a_link_to_one_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("数学")
    (tmp_path / "link").symlink_to("file")
    assert read_regular_text(tmp_path / "link") == "数学"
    with open_regular(tmp_path / "file") as file:
        assert file.seek(3) == 3
        assert file.read() == "学".encode()


def test_a_fifo_a_device_a_socket_and_a_folder_are_named(tmp_path: Path) -> None:
    fifo(tmp_path / "a FIFO")
    endless(tmp_path / "a device")
    (tmp_path / "a folder").mkdir()
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "a socket"))
        for path in tmp_path.iterdir():
            with pytest.raises(OSError, match=f"^it is {path.name}, and must be a regular file$"):
                open_regular(path)


def test_a_fifo_that_takes_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the file and its opening."""
    path = tmp_path / "file"
    path.write_text("a file")
    found = path.stat()
    assert stat.S_ISREG(found.st_mode)
    path.unlink()
    fifo(path)
    before = len([*Path("/proc/self/fd").iterdir()])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", lambda _: found)
        with pytest.raises(OSError, match=r"^it is a FIFO"):
            open_regular(path)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


@pytest.mark.parametrize("put", [fifo, endless])
def test_what_a_run_reads_is_refused_by_name(put: object, tmp_path: Path) -> None:
    assert callable(put)
    commits = Commits(tmp_path / "checkpoints")
    files = [write_synced(commits.begin(1) / "actor-00000.safetensors", [b"weights"])]
    folder = commits.commit(1, files, {}).folder
    places = {
        folder / MANIFEST: lambda: commits.read(1),
        tmp_path / "config.json": lambda: read_config(str(tmp_path)),
        tmp_path / "metrics.jsonl": lambda: forget_later_steps(tmp_path / "metrics.jsonl", 1),
    }
    for path, read in places.items():
        path.unlink(missing_ok=True)
        put(path)
        with pytest.raises(MindrlError, match=f"{path}.* must be a regular file") as error:
            read()
        assert isinstance(error.value, CheckpointError | ModelError | OutputError)
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").touch()
    put(tmp_path / "summary.json")
    with pytest.raises(OutputError, match=r"summary.json cannot be read: .* regular file"):
        read_run(tmp_path)
