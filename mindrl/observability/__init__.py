"""Logging, timing, metrics, trackers and what the user sees."""
