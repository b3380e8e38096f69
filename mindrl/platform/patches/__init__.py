"""Patches to third-party code: one file each, with its reason and version range."""
