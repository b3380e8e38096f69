"""The typed batches that travel between the stages of a step."""
