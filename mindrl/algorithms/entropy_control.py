"""A weight of the entropy bonus that follows a target."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class EntropyControl:
    """Holds the entropy up where it is below a target: Skywork-OR1 (arXiv 2505.22312), section 4.

    The weight grows by `delta` behind a step with less entropy than the target, else falls by it,
    to 0 at the least; where the entropy was above the target there is no bonus at all.
    """

    target: float
    """Nats."""
    delta: float
    weight: float
    """Of the bonus, where there is one."""
    is_below: bool = True
    """The last step had less entropy than the target, or there was none."""

    @property
    def coef(self) -> float:
        """The weight of the bonus in the next step."""
        return self.weight if self.is_below else 0.0

    def heed(self, entropy: float) -> None:
        """Take the entropy of a step, in nats."""
        self.is_below = entropy < self.target
        self.weight = max(0.0, self.weight + (self.delta if self.is_below else -self.delta))

    def state(self) -> dict[str, float | bool]:
        """Return what the next steps depend on."""
        return {"weight": self.weight, "is_below": self.is_below}

    def take_state(self, state: Mapping[str, float | bool]) -> None:
        """Go on from there."""
        self.weight, self.is_below = float(state["weight"]), bool(state["is_below"])
