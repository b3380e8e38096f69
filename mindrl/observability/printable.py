"""Text that others wrote, made safe to show on a terminal."""

import unicodedata


def printable(text: str) -> str:
    r"""Spell out, as `\x1b`, every character that could command a terminal or hide text.

    Those are Unicode's "Other" (control, format such as right-to-left override, lone
    surrogates, unassigned) and its line and paragraph separators. Newlines and tabs stay.
    """
    return "".join(char if _is_plain(char) else _spelled_out(char) for char in text)


def _is_plain(char: str) -> bool:
    category = unicodedata.category(char)
    return char in "\n\t" or not (category.startswith("C") or category in ("Zl", "Zp"))


def _spelled_out(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
