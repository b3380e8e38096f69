"""Per-device workers: the hybrid actor, the reference, the sharding manager."""
