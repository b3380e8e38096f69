"""What the tests of adapters call in prepared processes; see forked_workers.run."""

import torch
from adapter_messages import Adapted
from training_messages import Case, Course
from training_probe import build, copied
from training_shares import share

from mindrl.workers.weight_sync import TrainingWeights


def learned(case: Case, course: Course) -> Adapted:
    """Take the updates of a course with the adapters of a case."""
    model = build(case, course.optimizer)
    metrics = [
        model.train_step(share(case, minibatch), course.micro_batching, course.loss)
        for minibatch in course.minibatches
    ]
    assert model.adapters is not None
    source = TrainingWeights.of(model)
    merged = {
        name: torch.zeros(entry.shape, dtype=source.tensors[name].dtype)
        for name, entry in model.table.items()
    }
    for name, entry in model.table.items():
        for each in entry.placements:
            merged[name][tuple(slice(*bounds) for bounds in each.local)] = source.read(
                name, each.local
            )
    return Adapted(
        metrics=metrics,
        factors={name: each.clone() for name, each in model.adapters.tensors().items()},
        merged=merged,
        base=copied(model),
    )
