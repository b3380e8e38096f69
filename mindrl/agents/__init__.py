"""Unchanged agents of users: their calls of the policy go over HTTP, and are recorded as tokens."""
