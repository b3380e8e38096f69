"""Which prompts a step takes."""

import numpy as np


class PromptOrder:
    """Goes through the prompts epoch by epoch; a pure function of the seed and the step.

    Nothing is remembered between steps, so a resumed run needs no state to go on.
    """

    def __init__(self, count: int, seed: int, *, shuffle: bool) -> None:
        """Fix the order of `count` prompts.

        Args:
            count: Prompts of the data set, 1 or more.
            seed: Of the permutations.
            shuffle: Draw a fresh permutation in each epoch; else keep the order of the file.
        """
        self.count = count
        self.seed = seed
        self.shuffle = shuffle

    def indices(self, step: int, per_step: int) -> list[int]:
        """Return the prompts of a step, counted from 0.

        No prompt comes twice within an epoch; the rest of an epoch that is too short for a
        step goes together with the beginning of the next one.
        """
        positions = range(step * per_step, (step + 1) * per_step)
        epochs = {position // self.count for position in positions}
        orders = {epoch: self._epoch(epoch) for epoch in epochs}
        return [int(orders[at // self.count][at % self.count]) for at in positions]

    def _epoch(self, epoch: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if not self.shuffle:
            return np.arange(self.count)
        return np.random.default_rng([self.seed, epoch]).permutation(self.count)
