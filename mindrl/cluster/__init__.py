"""Ray: placement, worker groups, faults."""
