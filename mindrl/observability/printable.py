"""Text that others wrote, made safe to show on a terminal."""

import unicodedata


def printable(text: str) -> str:
    r"""Spell out, as `\x1b`, every character that could command a terminal or hide text.

    Those are Unicode's "Other" (control, format such as right-to-left override, lone
    surrogates, unassigned) and its line and paragraph separators. Newlines and tabs stay.
    """
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char).startswith(("C", "Zl", "Zp")) and char not in "\n\t"
        else char
        for char in text
    )
