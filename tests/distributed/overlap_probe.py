"""What the tests of overlap call in prepared processes; see forked_workers.run."""

from typing import Any

from megatron.core.distributed import finalize_model_grads
from memory_probe import storage_bytes
from offload_probe import swap_out_and_in
from overlap_messages import Overlapped
from training_messages import Case, Course
from training_probe import build, copied
from training_shares import share

from mindrl.training.engine import StatePart
from mindrl.training.megatron.engine import MegatronEngine


def overlapped(courses: list[tuple[Case, Course]]) -> list[Overlapped]:
    """Take the updates of each course."""
    return [_overlapped(build(case, course.optimizer), case, course) for case, course in courses]


def _overlapped(model: MegatronEngine, case: Case, course: Course) -> Overlapped:
    assert model.learning is not None
    groups = model.learning.overlap.groups
    early = []

    def finalize(*given: Any, **named: Any) -> None:
        early.append(sum(group.grad_reduce_handle is not None for group in groups))
        finalize_model_grads(*given, **named)

    model.config.finalize_model_grads_func = finalize
    metrics, device_bytes = [], []
    for minibatch in course.minibatches:
        ours = share(case, minibatch)
        metrics.append(model.train_step(ours, course.micro_batching, course.loss))
        if course.swap:
            model.complete_weights()
            device_bytes.append(swap_out_and_in(model))
    local = copied(model)
    model.complete_weights()
    weights, gradients, optimizer = (storage_bytes(model.state(part)) for part in StatePart)
    return Overlapped(
        metrics=metrics,
        weights=copied(model),
        local=local,
        buckets=len(groups),
        early=early,
        device_bytes=device_bytes,
        train_bytes=(weights, gradients, optimizer),
    )
