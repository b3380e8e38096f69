"""What the tests of predicted memory call in prepared processes; see forked_workers.run."""

from collections.abc import Iterable

import torch
from torch import Tensor
from training_messages import Case, Course
from training_probe import build, join, settings, share

from mindrl.algorithms.value_loss import ValueLoss
from mindrl.batch.experience import CriticMinibatch
from mindrl.models.decoder import Head
from mindrl.training.megatron.actor import TrainedActor
from mindrl.training.megatron.critic import TrainedCritic
from mindrl.training.megatron.optimizer import OptimizerSettings
from mindrl.training.megatron.value import ValueModel
from mindrl.training.state_part import StatePart


def found_bytes(trials: list[tuple[Case, Course, Head]]) -> list[dict[str, int]]:
    """Take one update in each layout; returns the bytes of what this rank then holds."""
    return [
        _of_critic(case, course) if head == "value" else _of_actor(case, course)
        for case, course, head in trials
    ]


def _of_actor(case: Case, course: Course) -> dict[str, int]:
    scoring = build(case)
    read = storage_bytes(scoring.weights())
    model = TrainedActor(scoring, OptimizerSettings(**course.optimizer), course.loss)
    (minibatch,) = course.minibatches
    model.update(share(case, minibatch), course.micro_batching)
    return {"read": read} | _of_parts(model)


def _of_critic(case: Case, course: Course) -> dict[str, int]:
    """Learn from the actor's minibatch, whatever its numbers mean."""
    valuing = ValueModel(case.folder, settings(case, join(case.layout)), head_seed=1)
    read = storage_bytes(valuing.weights())
    model = TrainedCritic(valuing, OptimizerSettings(**course.optimizer), ValueLoss(clip_range=0.5))
    (minibatch,) = course.minibatches
    learned = CriticMinibatch(
        tokens_BT=minibatch.tokens_BT,
        lengths_B=minibatch.lengths_B,
        response_mask_BT=minibatch.response_mask_BT,
        old_values_BT=minibatch.old_logprobs_BT,
        returns_BT=minibatch.advantages_BT,
        token_weights_BT=minibatch.token_weights_BT,
    )
    model.update(share(case, learned), course.micro_batching)
    return {"read": read} | _of_parts(model)


def _of_parts(model: TrainedActor | TrainedCritic) -> dict[str, int]:
    return {part.value: storage_bytes(model.tensors(part)) for part in StatePart}


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
    model = TrainedActor(build(case), OptimizerSettings(**course.optimizer), course.loss)
    weights = {tensor.untyped_storage()._cdata for tensor in model.tensors(StatePart.PARAMETERS)}
    kept: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in weights:
            kept.append(tensor.detach())
        return tensor

    (minibatch,) = course.minibatches
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.update(share(case, minibatch), course.micro_batching)
    return storage_bytes(kept)
