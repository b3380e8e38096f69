"""Checks and plans of a run before it starts."""
