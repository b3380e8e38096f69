"""The order in which a run visits its prompts."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PromptOrder:
    """Visits every prompt once per epoch, each epoch in an order of its own.

    A pure function of the seed and the step: a resumed run needs no state to go on
    where it was. The last prompts of an epoch share a step with the first of the next.
    """

    count: int
    """Prompts, at least 1."""
    seed: int
    """0 or more."""
    shuffle: bool
    """False visits them in the order of the file."""

    def indices(self, step: int, per_step: int) -> list[int]:
        """Return the `per_step` prompts of a step; steps count from 0."""
        position, end = step * per_step, (step + 1) * per_step
        chosen: list[int] = []
        while position < end:
            epoch, start = divmod(position, self.count)
            part = self._epoch(epoch)[start : start + end - position]
            chosen += part
            position += len(part)
        return chosen

    def _epoch(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.count))
        permutation: list[int] = (
            np.random.default_rng([self.seed, epoch]).permutation(self.count).tolist()
        )
        return permutation
