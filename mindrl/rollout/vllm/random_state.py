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
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    accelerator = torch.accelerator.current_accelerator()
    devices = [] if accelerator is None else [torch.accelerator.current_device_index()]
    with torch.random.fork_rng(devices, device_type=accelerator.type if accelerator else "cpu"):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
