"""The composition root: a validated configuration becomes a running trainer."""
