"""The learning rate of each optimizer step, by Megatron's rule."""

import math

from mindrl.config.role import LearningConfig


def learning_rate(learning: LearningConfig, step: int, updates: int) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0, in a run of `updates`.

    During a warm-up of w steps it rises linearly from 1 / (w + 1) of the peak. The decay that
    follows ends one step after the last.
    """
    warmup = int(learning.lr_warmup_fraction * updates)
    if step < warmup:
        first = learning.lr / (warmup + 1)
        return first + (learning.lr - first) * step / warmup
    if learning.lr_decay_style == "constant":
        return learning.lr
    # The decay ends after the warm-up.
    end = max(updates, warmup + 1)
    if step > end:
        return learning.min_lr
    done = (step - warmup) / (end - warmup)
    left = (
        1.0 - done if learning.lr_decay_style == "linear" else 0.5 * (math.cos(math.pi * done) + 1)
    )
    return learning.min_lr + left * (learning.lr - learning.min_lr)
