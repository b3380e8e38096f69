"""Allocation strings: a backend and its layout in one word. Pure Python."""
