"""JSON lines in real files, with a killed writer and a full disk."""

import json
import math
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from mindrl.errors import OutputError
from mindrl.observability.output_files import JsonLinesFile, forget_later_steps, json_text
from mindrl.report.run_record import step_lines


def test_nan_and_both_infinities_become_null_at_any_depth() -> None:
    value = {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": (-math.inf, 2, "x", None, True)}}
    assert json_text(value) == (
        '{"a": null, "b": [null, 1.5], "c": {"d": [null, 2, "x", null, true]}}'
    )


def test_text_of_any_kind_comes_back_equal_and_the_file_is_plain_ascii(tmp_path: Path) -> None:
    text = "\x1b[31m \x00 \x9b \u2028 数学 \ud83d \n"
    log = JsonLinesFile(tmp_path / "new" / "log.jsonl")
    log.append({"text": text}, {"path": Path("/a/b")})
    log.close()
    content = (tmp_path / "new" / "log.jsonl").read_bytes()
    assert all(byte == 10 or 32 <= byte < 127 for byte in content)
    records = [json.loads(line) for line in content.decode("ascii").split("\n")[:-1]]
    assert records == [{"text": text}, {"path": "/a/b"}]


def test_something_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError):
        json_text({"a": object()})


def test_a_process_killed_in_the_middle_of_writing_leaves_one_line_incomplete_at_most(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.jsonl"
    program = (
        "import itertools, sys; from pathlib import Path\n"
        "from mindrl.observability.output_files import JsonLinesFile\n"
        "log = JsonLinesFile(Path(sys.argv[1]))\n"
        "for i in itertools.count():\n"
        "    log.append({'i': i, 'text': 'x' * (i % 20000)})\n"
        "    i == 200 and print('go', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    # A kill may end a write between two pages of memory.
    *lines, cut = path.read_text().split("\n")
    for i, line in enumerate([*lines, cut]):
        assert json_text({"i": i, "text": "x" * (i % 20000)}).startswith(line)
    assert [json.loads(line)["i"] for line in lines] == [*range(len(lines))]
    assert len(lines) > 200


def test_a_file_that_exists_is_continued(tmp_path: Path) -> None:
    for number in (1, 2):
        log = JsonLinesFile(tmp_path / "log.jsonl")
        log.append({"n": number})
        log.close()
        log.close()
    assert (tmp_path / "log.jsonl").read_text() == '{"n": 1}\n{"n": 2}\n'


@pytest.mark.parametrize(("torn", "steps"), [('{"step": 2}', [1, 2, 3]), ('{"step": 2', [1, 3])])
def test_a_record_after_a_last_line_without_an_end_starts_a_new_line(
    torn: str, steps: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"step": 1}}\n{torn}')
    log = JsonLinesFile(path)
    log.append({"step": 3})
    log.close()
    assert path.read_text() == f'{{"step": 1}}\n{torn}\n{{"step": 3}}\n'
    assert [each["step"] for each in step_lines(path)] == steps


def test_a_full_disk_and_a_folder_in_the_way_are_reported_with_the_path(tmp_path: Path) -> None:
    log = JsonLinesFile(Path("/dev/full"))
    with pytest.raises(OutputError, match="/dev/full cannot be written: No space left"):
        log.append({"n": 1})
    with pytest.raises(OutputError, match=f"{tmp_path} cannot be written: Is a directory"):
        JsonLinesFile(tmp_path)


def test_steps_behind_one_are_forgotten_and_so_is_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 2, "evaluation": 1}\n{"step": 3}\n{"st')
    forget_later_steps(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 2, "evaluation": 1}\n'
    assert forget_later_steps(tmp_path / "none.jsonl", 2) == []
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_lines_between_kept_ones_are_forgotten_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 3}\n{"st\n{"step": 2}\n{"step": 4}\n')
    assert forget_later_steps(path, 2) == [2]
    assert path.read_text() == '{"step": 1}\n{"st\n{"step": 2}\n'
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_long_file_is_read_line_by_line_and_not_written_again(tmp_path: Path) -> None:
    path, response = tmp_path / "samples.jsonl", "x" * (1 << 20)
    log = JsonLinesFile(path)
    for step in range(1, 33):
        log.append({"step": step, "response": response})
    log.close()
    before = path.stat()
    tracemalloc.start()
    forget_later_steps(path, 32)
    after = path.stat()
    forget_later_steps(path, 30)
    # A line, its parsed record, and copies of them.
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [each["step"] for each in step_lines(path)] == [*range(1, 31)]


@pytest.mark.parametrize(
    "odd", ['{"loss": 1}', '{"step": "1"}', '{"step": null}', '{"step": true}', "[1]", "7", '{"st']
)
def test_a_line_without_a_step_stays_before_others_and_is_counted(odd: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{odd}\n{{"step": 2}}\n{{"step": 3}}\n{odd}\n')
    assert forget_later_steps(path, 2) == [2]
    assert path.read_text() == f'{{"step": 1}}\n{odd}\n{{"step": 2}}\n'
    assert [each["step"] for each in step_lines(path)] == [1, 2]
    assert forget_later_steps(path, -1) == []
    assert path.read_text() == ""
