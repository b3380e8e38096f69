"""What the tests of predicted memory call in prepared processes; see forked_workers.run."""

import weakref
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from archon_probe import build as archon_build
from torch import Tensor
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from training_messages import Case, Course
from training_probe import build, join, share
from value_probe import value_model

from mindrl.algorithms.value_loss import ValueLoss
from mindrl.batch.experience import CriticMinibatch, Minibatch
from mindrl.config.archon import ArchonConfig
from mindrl.config.backends import TRAINING_BACKEND, TrainingBackend
from mindrl.models.decoder import Head
from mindrl.training.engine import StatePart, TrainingEngine


def found_bytes(
    trials: list[tuple[Case, Course, Head, TrainingBackend]],
) -> list[dict[str, int]]:
    """Take one update in each layout; returns the bytes of what this rank then holds."""
    return [_found_bytes(*trial) for trial in trials]


def _found_bytes(
    case: Case, course: Course, head: Head, backend: TrainingBackend
) -> dict[str, int]:
    reading, model = _models(case, course, head, backend)
    (minibatch,) = course.minibatches
    ours = share(case, minibatch)
    if head == "value":
        loss = ValueLoss(clip_range=0.5)
        model.train_step(_of_critic(ours), course.micro_batching, loss)
    else:
        model.train_step(ours, course.micro_batching, course.loss)
    found = {part.value: storage_bytes(model.state(part)) for part in StatePart}
    return {"read": storage_bytes(reading.state(StatePart.PARAMETERS))} | found


def _models(
    case: Case, course: Course, head: Head, backend: TrainingBackend
) -> tuple[TrainingEngine, TrainingEngine]:
    """Build a model to read with, and one that learns."""
    if backend != TRAINING_BACKEND:
        archon = ArchonConfig(pp_schedule="ZBV" if case.layout.folds else None)
        case = replace(case, settings={"head": head, "archon": archon})
        return archon_build(case, head_seed=1), archon_build(case, course.optimizer, head_seed=1)
    if head == "value":
        of_layout = partial(value_model, case, join(case.layout), head_seed=1)
        return of_layout(), of_layout(course.optimizer)
    return build(case), build(case, course.optimizer)


def _of_critic(minibatch: Minibatch) -> CriticMinibatch:
    """Learn from the actor's minibatch, whatever its numbers mean."""
    return CriticMinibatch(
        tokens_BT=minibatch.tokens_BT,
        lengths_B=minibatch.lengths_B,
        response_mask_BT=minibatch.response_mask_BT,
        old_values_BT=minibatch.old_logprobs_BT,
        returns_BT=minibatch.advantages_BT,
        token_weights_BT=minibatch.token_weights_BT,
    )


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
        model.train_step(share(case, minibatch), course.micro_batching, course.loss)
    return storage_bytes(kept)


class _Temporaries(TorchDispatchMode):
    """The most bytes of tensors made by operations that exist at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(self, operation: Any, _: Any, given: Any = (), named: Any = None) -> Any:
        made = operation(*given, **(named or {}))
        old = {_storage(each) for each in tree_leaves((given, named)) if isinstance(each, Tensor)}
        for each in tree_leaves(made):
            if isinstance(each, Tensor) and _storage(each) not in old:
                self.alive[id(each)] = each.nbytes
                weakref.finalize(each, self.alive.pop, id(each))
        self.most = max(self.most, sum(self.alive.values()))
        return made


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def step_bytes(case: Case, course: Course) -> tuple[int, int, int]:
    """Take an optimizer step as torch would on a device.

    Returns the bytes of all float32 weights, of the largest one, and the most that the step makes.
    """
    optimizer._get_foreach_kernels_supported_devices = lambda: ["cpu"]
    model = build(case, course.optimizer)
    assert model.learning is not None
    groups = model.learning.optimizer.param_groups
    sizes = [each.nbytes for group in groups for each in group["params"]]
    with _Temporaries() as made:
        assert model.learning.step([torch.zeros(())])["skipped"] == 0.0
    return sum(sizes), max(sizes), made.most
