"""Updates that find the log-probs they start from, beside updates that are given them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from training_messages import BothWays, Case, Course, Weights
from training_probe import build, copied, share

from mindrl.batch.experience import Minibatch


def both_ways(cases: list[Case], course: Course) -> list[BothWays]:
    """Take one update in each layout, twice from the same weights."""
    return [_both_ways(case, course) for case in cases]


def _both_ways(case: Case, course: Course) -> BothWays:
    (minibatch,) = course.minibatches
    ours, cut = share(case, minibatch), course.micro_batching
    model = build(case, course.optimizer)
    read = model.forward(ours, cut)
    recomputed = replace(ours, old_logprobs_BT=torch.zeros(()) if read is None else read[0])
    # What the other stages are given nobody looks at.
    first = _updated(case, course.optimizer, course, recomputed if read is not None else ours)
    kept: list[torch.Tensor] = []
    found = replace(ours, old_logprobs_BT=None)
    second = _updated(case, course.optimizer, course, found, kept.append)
    same = [torch.equal(theirs, mine) for theirs, mine in zip(read or (), kept, strict=True)]
    return BothWays(recomputed=first, found=second, same_logprobs=all(same))


def _updated(
    case: Case, optimizer: Mapping[str, Any], course: Course, ours: Minibatch, keep: Any = None
) -> tuple[dict[str, float], Weights]:
    model = build(case, optimizer)
    metrics = model.train_step(ours, course.micro_batching, course.loss, keep=keep)
    return metrics, copied(model)
