"""The memory of a device: its regions, the schedule by which they take turns, estimates."""
