"""Environments of conversations: tools and text games, each in a process of its own."""
