"""The parts of the suite are all of it, each test once."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from suite_parts import Part

ROOT = Path(__file__).parents[2]


def test_parts_have_each_thing_once() -> None:
    things = [*range(10)]
    parts = [Part.read(f"{number}/3").of(things) for number in (1, 2, 3)]
    assert parts == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


@pytest.mark.nightly
def test_a_part_of_the_suite_has_whole_files() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/unit/batch"]
    done = subprocess.run(
        [*command, "--part", "2/2"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = {line.split("::")[0] for line in done.stdout.splitlines() if "::" in line}
    files = sorted(ROOT.glob("tests/unit/batch/test_*.py"))
    assert found == {str(path.relative_to(ROOT)) for path in files[1::2]}


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/", "a/b", "-1/3"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="need K/N"):
        Part.read(text)
