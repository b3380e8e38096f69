"""What a machine has and lacks: facts, and what they mean for a run."""
