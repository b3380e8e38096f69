"""Moves weights from the training layout to the rollout layout."""
