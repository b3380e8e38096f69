"""Two minutes with a tiny model that show whether the devices of this machine can be trusted."""
