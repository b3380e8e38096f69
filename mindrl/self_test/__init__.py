"""A two-minute test with a tiny model: whether the devices of this machine compute correctly."""
