"""What runs on a device: the hybrid actor, the reference, the sharding manager."""
