"""What the tables of natural mistakes have in common."""

from collections.abc import Callable

Said = Callable[[list[str]], tuple[int, str]]
"""Makes a program prepare a run with overrides; returns its exit code and its words."""
