"""Scores of responses, computed outside the trainer's process."""
