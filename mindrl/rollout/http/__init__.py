"""Rollout engines that are servers of their own, reached by HTTP."""
