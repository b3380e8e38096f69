"""Interim."""

import numpy as np


class PromptOrder:
    def __init__(self, count, seed, shuffle):
        self.count, self.seed, self.shuffle = count, seed, shuffle

    def indices(self, step, per_step):
        out = []
        for k in range(step * per_step, (step + 1) * per_step):
            e, i = divmod(k, self.count)
            out.append(int(np.random.default_rng([self.seed, e]).permutation(self.count)[i]))
        return out
