"""Metrics destinations besides the run folder; the run waits for none of them."""
