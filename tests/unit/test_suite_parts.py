"""The parts of the suite are all of it, each test once, and what takes long comes first."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from suite_order import LONG, takes_long
from suite_parts import Part

ROOT = Path(__file__).parents[2]


def test_parts_have_each_thing_once() -> None:
    things = [*range(10)]
    parts = [Part.read(f"{number}/3").of(things) for number in (1, 2, 3)]
    assert parts == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


@pytest.mark.nightly
def test_a_part_of_the_suite_has_whole_files() -> None:
    files = sorted(ROOT.glob("tests/unit/batch/test_*.py"))
    expected = [str(path.relative_to(ROOT)) for path in files[1::2]]
    assert collected("tests/unit/batch", "--part", "2/2") == expected


@pytest.mark.nightly
def test_files_that_take_long_come_first() -> None:
    files = collected("tests/unit/batch", "tests/unit/agents")
    first = [each for each in files if takes_long(each)]
    assert first
    assert files[: len(first)] == first


@pytest.mark.parametrize("beginning", LONG)
def test_each_file_that_takes_long_exists(beginning: str) -> None:
    assert [*ROOT.glob(f"{beginning}*")]


def collected(*arguments: str) -> list[str]:
    """Return the files that pytest would run, in order."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = [line.split("::")[0] for line in done.stdout.splitlines() if "::" in line]
    return [*dict.fromkeys(files)]


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/", "a/b", "-1/3"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="need K/N"):
        Part.read(text)
