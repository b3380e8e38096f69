"""Environments of other libraries, by the contract of mindrl."""
