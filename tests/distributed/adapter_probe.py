"""What the tests of adapters call in prepared processes; see forked_workers.run."""

import torch
import torch.distributed as dist
from adapter_messages import Adapted
from training_messages import Case, Course
from training_probe import copied, of_any_engine
from training_shares import share

from mindrl.workers.weight_sync import TrainingWeights


def learned(case: Case, course: Course) -> Adapted:
    """Take the updates of a course with the adapters of a case."""
    model = of_any_engine(case, course.optimizer)
    metrics = [
        model.train_step(share(case, minibatch), course.micro_batching, course.loss)
        for minibatch in course.minibatches
    ]
    model.complete_weights()
    assert model.adapters is not None
    source, table = TrainingWeights.of(model), model.sharding.table(dist.get_rank())
    merged = {
        name: torch.zeros(entry.shape, dtype=source.tensors[name].dtype)
        for name, entry in table.items()
    }
    for name, entry in table.items():
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
