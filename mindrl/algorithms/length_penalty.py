"""Penalty of responses close to the maximum length."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LengthPenalty:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13)."""

    longest: int
    """Maximum length of a response in tokens."""
    buffer: int
    """Number of last tokens over which the penalty grows; 1 or more."""
    factor: float
    """Penalty of a response of maximum length, in units of reward."""

    def __call__(self, length: int) -> float:
        """Return the addition to the reward: 0 up to longest - buffer, -factor at the maximum."""
        beyond = length - (self.longest - self.buffer)
        return -self.factor * min(max(beyond, 0), self.buffer) / self.buffer
