"""Typed batches passed between the stages of a step."""
