"""The house's figures may get better, and not worse without a stated reason."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RATCHET = ROOT / "scripts/house_ratchet.yaml"


@pytest.fixture
def prose(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return import_module("house_prose")


def test_no_figure_of_the_house_is_worse_than_its_record(prose: Any) -> None:
    text = import_module("house_text")
    sources = text.read_sources(ROOT)
    names = import_module("house_names")
    figures = [
        *text.text_figures(sources),
        *prose.prose_figures(sources, ROOT),
        *names.name_figures(sources),
    ]
    recorded = yaml.safe_load(RATCHET.read_text(encoding="utf-8"))
    found = {figure.name: figure.value for figure in figures if figure.name in recorded}
    assert found.keys() == recorded.keys()
    assert [
        f"{name}: {value:g}, at most {recorded[name]['at_most']} in {RATCHET.name}"
        for name, value in found.items()
        if value > recorded[name]["at_most"]
    ] == []
    assert all(each["reason"] for each in recorded.values())


def test_prose_is_docstrings_attribute_docstrings_and_comments(prose: Any) -> None:
    source = (
        '"""Module."""\n'
        "LIMIT = 3  # of tries\n"
        '"""Tries of a call."""\n'
        'TEXT = "behind"\n'
        "def run():\n"
        '    """Run."""\n'
    )
    assert sorted(prose.prose_of(source).splitlines()) == [
        "Module.",
        "Run.",
        "Tries of a call.",
        "of tries",
    ]


def test_texts_are_strings_of_four_words_that_are_no_prose(prose: Any) -> None:
    source = (
        '"""What a module says of itself."""\n'
        'NAME = "three words only"\n'
        'TEXT = "a tensor lies behind it"\n'
        "def run(count):\n"
        '    raise ValueError(f"{behind} of {count} rows were not " "read at all")\n'
    )
    assert [" ".join(text.split()) for text in prose.texts_of(source).splitlines()] == [
        "a tensor lies behind it",
        "of rows were not read at all",
    ]
    counts = prose.dialect_counts(prose.texts_of(source), prose.DIALECT_IN_TEXTS)
    assert {name for name, count in counts.items() if count} == {
        "behind",
        "draws, learns, lies, asked",
    }


def test_phrases_are_counted_as_whole_words_across_line_ends(prose: Any) -> None:
    counts = prose.dialect_counts("It says so. None\nwhere it goes\n  on, besides whosever.")
    assert {name: count for name, count in counts.items() if count} == {
        "says, tells": 1,
        "beside": 1,
        "None where, empty where": 1,
        "goes on": 1,
    }


def test_a_mode_that_prose_names_is_no_line_that_asks_for_it(prose: Any) -> None:
    source = (
        '"""is_apart."""\n'
        "# is_apart\n"
        "if config.is_apart:  # is_spread\n"
        "    '''is_spread'''\n"
        "    run(config.max_staleness)\n"
        "    not_is_apart = 1\n"
    )
    assert prose.mode_lines({"mindrl/a.py": source}) == ["mindrl/a.py:3", "mindrl/a.py:5"]


@pytest.mark.usefixtures("prose")
def test_names_count_where_they_are_defined_and_locals_do_not() -> None:
    names = import_module("house_names")
    source = (
        "_ASKED = 1\n"
        "class LoneStem:\n"
        "    told: str\n"
        "    def heard(self, behind, task):\n"
        "        said = task.asked\n"
        "        self.is_told, mask = said, 1\n"
        "def basked(): pass\n"
    )
    found = ["_ASKED", "LoneStem", "told", "heard", "behind", "is_told"]
    assert names.dialect_names(source) == found
