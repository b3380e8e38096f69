"""Rollout engines that run as separate servers, reached by HTTP."""
