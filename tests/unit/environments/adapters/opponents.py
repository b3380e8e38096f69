"""Opponents of the tests."""


def last_square(observation: str) -> str:
    """Take the highest free square of tic-tac-toe."""
    listed = observation.rpartition("Available Moves:")[2]
    return max(part for part in listed.split("'") if part.startswith("["))
