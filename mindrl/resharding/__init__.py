"""Move weights from the training layout to the rollout layout."""
