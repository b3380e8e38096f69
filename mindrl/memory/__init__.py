"""Device memory: regions, the schedule by which they take turns, and estimates."""
