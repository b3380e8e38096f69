"""Hostile text shown as text."""

import sys
import unicodedata

import pytest

from mindrl.observability.terminal import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\x00b\rc\x7f", r"a\x00b\rc\x7f"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202eevil", r"\u202eevil"),
        ("\ud83d", r"\ud83d"),
        ("one\u2028two\u2029", r"one\u2028two\u2029"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("数学 = 3\u00d74, é, 😀", "数学 = 3\u00d74, é, 😀"),
    ],
)
def test_commands_are_spelled_out_and_words_of_any_language_stay(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_of_all_of_unicode_only_newline_and_tab_survive_among_the_control_characters() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    shown = set(printable(everything))
    assert {char for char in shown if unicodedata.category(char).startswith("C")} == {"\n", "\t"}
