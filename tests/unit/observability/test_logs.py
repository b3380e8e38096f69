"""Log files and redirected output of real processes."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindrl.errors import OutputError
from mindrl.observability.logs import configure_logging, tail


@pytest.fixture
def _root_logger() -> Iterator[None]:
    """Put the root logger back, which pytest uses as well."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, root.level = handlers, level


@pytest.mark.usefixtures("_root_logger")
def test_a_record_has_time_level_and_logger_and_debug_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "driver.log"
    configure_logging(path)
    logging.getLogger("mindrl.trainer").info("step %d, surrogate \ud83d", 12)
    logging.getLogger("mindrl.trainer").debug("unseen")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO mindrl\.trainer: "
        r"step 12, surrogate \\ud83d\n",
        path.read_text(),
    )


@pytest.mark.usefixtures("_root_logger")
def test_a_second_call_moves_to_the_second_file_and_appends_to_it(tmp_path: Path) -> None:
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    second.write_text("earlier run\n")
    configure_logging(first)
    logging.getLogger("a").info("one")
    configure_logging(second)
    logging.getLogger("a").info("two")
    assert first.read_text().endswith(" INFO a: one\n")
    assert re.fullmatch(r"earlier run\n.* INFO a: two\n", second.read_text())


@pytest.mark.usefixtures("_root_logger")
def test_a_log_file_that_is_a_folder_is_reported_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=f"{tmp_path} cannot be written: Is a directory"):
        configure_logging(tmp_path)


def run_python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=buffered,
    )


def test_redirect_catches_python_file_descriptors_children_and_the_last_traceback(
    tmp_path: Path,
) -> None:
    path = tmp_path / "worker.log"
    result = run_python(
        "import os, subprocess, sys; from pathlib import Path\n"
        "from mindrl.observability.logs import redirect_output\n"
        "print('before', end='')\n"
        "redirect_output(Path(sys.argv[1]))\n"
        "print('python \\ud83d'); os.write(2, b'descriptor\\n')\n"
        "subprocess.run(['echo', 'child'])\n"
        "print('error', file=sys.stderr)\n"
        "raise SystemError('the end')\n",
        str(path),
    )
    assert (result.stdout, result.stderr) == ("before", "")
    lines = path.read_text().splitlines()
    assert lines[:4] == [r"python \ud83d", "descriptor", "child", "error"]
    assert lines[-1] == "SystemError: the end"


def test_a_line_printed_right_before_the_process_is_killed_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    result = run_python(
        "import os, signal, sys; from pathlib import Path\n"
        "from mindrl.observability.logs import redirect_output\n"
        "redirect_output(Path(sys.argv[1]))\n"
        "print('last words'); os.kill(os.getpid(), signal.SIGKILL)\n",
        str(path),
    )
    assert result.returncode == -9
    assert path.read_text() == "last words\n"


def test_redirect_to_a_path_under_a_file_is_refused_and_leaves_the_output_as_it_was(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    result = run_python(
        "import sys; from pathlib import Path\n"
        "from mindrl.errors import OutputError\n"
        "from mindrl.observability.logs import redirect_output\n"
        "try: redirect_output(Path(sys.argv[1]))\n"
        "except OutputError as error: print(error)\n",
        str(tmp_path / "file" / "worker.log"),
    )
    assert result.stdout == f"{tmp_path}/file/worker.log cannot be written: File exists\n"


def test_tail_gives_the_last_3_of_10000_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"line {number} {'x' * 80}\n" for number in range(10_000)))
    assert [line.split()[1] for line in tail(path, lines=3).splitlines()] == [
        "9997",
        "9998",
        "9999",
    ]


def test_tail_drops_colours_and_blank_lines_and_spells_out_what_could_harm_a_terminal(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"\x1b[1;31mERROR\x1b[0m \xff\xfe\n\n 10%\r 20%\r\x1b[2Jend\x00\n")
    assert tail(path) == "ERROR \ufffd\ufffd\n 10%\n 20%\n\\x1b[2Jend\\x00"


def test_tail_of_an_empty_file_is_empty_and_of_a_missing_one_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("")
    assert tail(tmp_path / "empty.log") == ""
    assert tail(tmp_path / "gone.log") == f"({tmp_path}/gone.log: No such file or directory)"
    (tmp_path / "one.log").write_text("one\n")
    assert tail(tmp_path / "one.log", lines=0) == ""


def test_a_full_disk_costs_log_lines_and_ends_neither_the_process_nor_its_words(
    tmp_path: Path,
) -> None:
    result = run_python(
        "import logging, os, resource, sys; from pathlib import Path\n"
        "from mindrl.observability.logs import configure_logging, redirect_output\n"
        "folder = Path(sys.argv[1])\n"
        "kept = os.dup(2)\n"
        "configure_logging(folder / 'driver.log')\n"
        "redirect_output(folder / 'worker.log')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "for line in range(100):\n"
        "    print('line', line)\n"
        "    logging.getLogger('a').info('line %d', line)\n"
        "os.write(kept, b'at the end\\n')\n",
        str(tmp_path),
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "at the end\n")
    for name in ("driver.log", "worker.log"):
        log = (tmp_path / name).read_text()
        assert "line 5\n" in log
        assert len(log) <= 1000
        assert "Traceback" not in log
