"""Keeps the engine's use of random numbers away from the trainer's."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def own_random_state(seed: int) -> Iterator[None]:
    """Run with freshly seeded global generators, then put the former states back.

    The engine reseeds the global generators when it starts, and draws from them even where
    every request has its own seed.
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
