"""Check a machine: facts about it, and what they mean for a run."""
