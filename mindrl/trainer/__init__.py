"""The order of a step, with no backend in sight."""
