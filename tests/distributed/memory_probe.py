"""What the tests of predicted memory call in prepared processes; see forked_workers.run."""

from collections.abc import Iterable

import torch
from torch import Tensor
from training_messages import Case, Course
from training_probe import build, join, share
from value_probe import value_model

from mindrl.algorithms.losses import ValueLoss
from mindrl.batch.experience import CriticMinibatch
from mindrl.models.decoder import Head
from mindrl.training.engine import StatePart
from mindrl.training.megatron.engine import MegatronEngine


def found_bytes(trials: list[tuple[Case, Course, Head]]) -> list[dict[str, int]]:
    """Take one update in each layout; returns the bytes of what this rank then holds."""
    return [
        _of_critic(case, course) if head == "value" else _of_actor(case, course)
        for case, course, head in trials
    ]


def _of_actor(case: Case, course: Course) -> dict[str, int]:
    read = storage_bytes(build(case).state(StatePart.PARAMETERS))
    model = build(case, course.optimizer)
    (minibatch,) = course.minibatches
    model.train_step(share(case, minibatch), course.micro_batching, course.loss.of_minibatch)
    return {"read": read} | _of_parts(model)


def _of_critic(case: Case, course: Course) -> dict[str, int]:
    """Learn from the actor's minibatch, whatever its numbers mean."""
    groups, loss = join(case.layout), ValueLoss(clip_range=0.5)
    read = storage_bytes(value_model(case, groups, head_seed=1).state(StatePart.PARAMETERS))
    model = value_model(case, groups, course.optimizer, head_seed=1)
    (minibatch,) = course.minibatches
    learned = CriticMinibatch(
        tokens_BT=minibatch.tokens_BT,
        lengths_B=minibatch.lengths_B,
        response_mask_BT=minibatch.response_mask_BT,
        old_values_BT=minibatch.old_logprobs_BT,
        returns_BT=minibatch.advantages_BT,
        token_weights_BT=minibatch.token_weights_BT,
    )
    model.train_step(share(case, learned), course.micro_batching, loss.of_minibatch)
    return {"read": read} | _of_parts(model)


def _of_parts(model: MegatronEngine) -> dict[str, int]:
    return {part.value: storage_bytes(model.state(part)) for part in StatePart}


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Add up the storages behind some tensors, each once."""
    sizes = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors
    }
    return sum(sizes.values())


def kept_bytes(trials: list[tuple[Case, Course]]) -> list[int]:
    """Take an update of one micro-batch of each model; returns what waited for the backward pass.

    Without weights.
    """
    return [_kept_bytes(case, course) for case, course in trials]


def _kept_bytes(case: Case, course: Course) -> int:
    model = build(case, course.optimizer)
    weights = {tensor.untyped_storage()._cdata for tensor in model.state(StatePart.PARAMETERS)}
    kept: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in weights:
            kept.append(tensor.detach())
        return tensor

    (minibatch,) = course.minibatches
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.train_step(share(case, minibatch), course.micro_batching, course.loss.of_minibatch)
    return storage_bytes(kept)
