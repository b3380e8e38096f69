"""What engines share to train models with a vision tower."""
