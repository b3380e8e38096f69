"""Weight of the entropy bonus, adapted to a target."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class EntropyControl:
    """Keeps the entropy above a target: Skywork-OR1 (arXiv 2505.22312), section 4.

    The weight grows by `delta` after a step with less entropy than the target, and otherwise
    decreases by it, to 0 at least; after a step with more entropy than the target there is no
    bonus.
    """

    target: float
    """Nats."""
    delta: float
    weight: float
    """Weight of the bonus, if there is one."""
    is_below: bool = True
    """Whether the last step had less entropy than the target; true before the first step."""

    @property
    def coef(self) -> float:
        """Weight of the bonus in the next step."""
        return self.weight if self.is_below else 0.0

    def observe(self, entropy: float) -> None:
        """Update the weight from the entropy of a step, in nats."""
        self.is_below = entropy < self.target
        self.weight = max(0.0, self.weight + (self.delta if self.is_below else -self.delta))

    def state(self) -> dict[str, float | bool]:
        """Return the state that the next steps depend on."""
        return {"weight": self.weight, "is_below": self.is_below}

    def load_state(self, state: Mapping[str, float | bool]) -> None:
        """Restore the state."""
        self.weight, self.is_below = float(state["weight"]), bool(state["is_below"])
