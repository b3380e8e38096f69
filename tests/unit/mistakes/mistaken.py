"""Common part of the tables of common mistakes."""

from collections.abc import Callable

Said = Callable[[list[str]], tuple[int, str]]
"""Prepares a run with overrides; returns the exit code and the messages of the program."""
