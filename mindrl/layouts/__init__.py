"""Layouts and the order of ranks. Pure Python."""
