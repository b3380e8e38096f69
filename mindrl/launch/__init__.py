"""The composition root: a checked run becomes a trainer with its workers."""
