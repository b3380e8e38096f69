"""What a response loses for coming near the longest that is allowed."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LengthPenalty:
    """The soft punishment of DAPO (arXiv 2503.14476, eq. 13)."""

    longest: int
    """Tokens of the longest response."""
    buffer: int
    """Its last tokens, over which the penalty grows; 1 or more."""
    factor: float
    """Penalty of the longest response, in units of reward."""

    def __call__(self, length: int) -> float:
        """Return what is added to the reward: 0 up to longest - buffer, -factor at the longest."""
        beyond = length - (self.longest - self.buffer)
        return -self.factor * min(max(beyond, 0), self.buffer) / self.buffer
