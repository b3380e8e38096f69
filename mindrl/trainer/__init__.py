"""The sequence of a step, independent of backends."""
