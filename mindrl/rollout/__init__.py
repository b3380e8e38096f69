"""Rollout engines: one package each."""
