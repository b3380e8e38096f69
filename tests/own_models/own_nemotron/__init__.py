"""Nemotron, a family without a network in mindrl, added by a user's own package."""
