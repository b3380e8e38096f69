"""Logging, timing, metrics, trackers and output for the user."""
