"""Layouts and rank grids. Pure Python."""
