"""Frozen configuration sections, their loading and their validation. Imports no torch."""
