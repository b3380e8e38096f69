"""Nemotron, a family that mindrl has no network of, as a package of a user's own adds it."""
