"""What the tests of the torch-native engine call in forked processes; see forked_workers.run.

Shapes: B sequences, T positions, N tokens, V the vocabulary.
"""

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from own_device import device_type
from torch import Tensor
from torch._dynamo.utils import counters
from training_messages import Case, Course, Life, Trial, Updated
from training_shares import share, with_all_asked

from mindrl.batch.sequences import Sequences
from mindrl.checkpoint.any_family import read_any_description, read_seeing_description
from mindrl.checkpoint.files import tensor_shapes
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.role import LearningConfig
from mindrl.models.any_family import any_description
from mindrl.models.config_file import read_config
from mindrl.models.description import ModelDescription
from mindrl.models.own_family import own_description
from mindrl.platform.attention import attention_kernel
from mindrl.training.archon.engine import ArchonEngine
from mindrl.training.archon.sharding import archon_sharding
from mindrl.training.engine import TrainingEngine
from mindrl.training.fsdp.engine import FsdpEngine
from mindrl.training.packs import Pack
from mindrl.training.settings import EngineSettings

# As a package that is installed.
sys.path.append(str(Path(__file__).parents[1] / "own_models"))


def build(
    case: Case, optimizer: Mapping[str, Any] | None = None, *, head_seed: int | None = None
) -> ArchonEngine:
    """Build the model over all ranks of the group; with an optimizer it learns."""
    asked = {**case.settings, **(optimizer or {})}
    updates = asked.pop("updates", None)
    learning, training = (
        {each.name: asked.pop(each.name) for each in fields(section) if each.name in asked}
        for section in (LearningConfig, MegatronTrainingConfig)
    )
    settings = EngineSettings(
        layout=case.layout,
        training=MegatronTrainingConfig(
            train_iters=1,
            global_batch_size=1,
            seq_length=64,
            data_path="unused.jsonl",
            bf16=case.bf16,
            sequence_parallel=case.sequence_parallel,
            **training,
        ),
        learning=LearningConfig(**learning),
        device_type=device_type(),
        attention=attention_kernel(device_type()),
        temperature=case.temperature,
        **asked,
    )
    model = _described(case)
    sharding = archon_sharding(
        model, case.layout, head=settings.head, fsdp_size=settings.learning.archon.fsdp_size
    )
    known = model, sharding
    is_other = model.other and not model.other.own and case.backend != "archon"
    engine = FsdpEngine if is_other else ArchonEngine
    return engine(case.folder, settings, known, updates=updates, head_seed=head_seed)


def _described(case: Case) -> ModelDescription:
    """Read what the model is, by a spec or as of any family where the case asks for that."""
    if case.spec and (own := own_description(case.folder, [case.spec])):
        return own
    if case.backend == "archon":
        found = read_seeing_description(case.folder)
        return found.with_frozen_tower() if case.freezes_tower else found
    if case.backend != "fsdp":
        return read_any_description(case.folder)
    path, values = read_config(case.folder)
    found = any_description(path, values, tensor_shapes(case.folder))
    return found.with_frozen_tower() if case.freezes_tower else found


def trials(courses: list[tuple[Case, Course]], sequences: Sequences) -> list[Trial]:
    """Build each model once; returns its logits and what the updates say."""
    results = []
    for case, course in courses:
        model = build(case, course.optimizer)
        logits = _logits(model, with_all_asked(sequences))
        metrics = [
            model.train_step(share(case, minibatch), course.micro_batching, course.loss)
            for minibatch in course.minibatches
        ]
        results.append(Trial(logits_BTV=logits, metrics=metrics))
    return results


def lives(
    courses: list[tuple[Case, Course]],
    sequences: Sequences,
    build: Callable[..., TrainingEngine] = build,
) -> list[Life]:
    """Build each model once; says what it reads of this rank's share, then what it learns."""
    found = []
    for case, course in courses:
        model = build(case, course.optimizer)
        read = model.forward(share(case, sequences), course.micro_batching)
        metrics = [
            model.train_step(share(case, minibatch), course.micro_batching, course.loss)
            for minibatch in course.minibatches
        ]
        weights = {name: tensor.clone() for name, tensor in model.local_tensors().items()}
        graphs = counters["stats"]["unique_graphs"]
        life = Life(logprobs_BT=read and read[0], metrics=metrics, weights=weights, graphs=graphs)
        found.append(life)
    return found


@torch.no_grad()
def _logits(model: ArchonEngine, sequences: Sequences) -> Tensor:
    """Return the logits of this rank's tokens and part of the vocabulary, 0 for other tokens.

    Empty on ranks without the head.
    """

    def multiply(pack: Pack[Sequences], hidden_1SH: Tensor, weight: Tensor) -> Tensor:
        logits_NV = hidden_1SH[0, pack.predicting_N] @ weight.T
        B, T = pack.source.tokens_BT.shape
        flat = logits_NV.new_zeros(B * T, logits_NV.size(1))
        flat[pack.places_N - 1] = logits_NV
        return flat.view(B, T, -1)

    found = model.pipeline.forward(model.packs([sequences]), multiply)
    return found[0] if found else torch.empty(0)


def updates(cases: list[Case], course: Course) -> list[Updated]:
    """Train each model; returns what the updates say, and this rank's weights behind them."""
    results = []
    for case in cases:
        model = build(case, course.optimizer)
        metrics = [
            model.train_step(share(case, minibatch), course.micro_batching, course.loss)
            for minibatch in course.minibatches
        ]
        weights = {name: tensor.clone() for name, tensor in model.local_tensors().items()}
        results.append(Updated(metrics=metrics, weights=weights, device_bytes=[]))
    return results


def kept_elements(cases: list[Case], course: Course) -> list[Counter[str]]:
    """Count of each tensor the elements that this rank writes into a checkpoint."""
    results = []
    for case in cases:
        counts: Counter[str] = Counter()
        for each in build(case, course.optimizer).state_slices():
            if each.is_ours:
                counts[f"{each.tensor} {each.kind}"] += each.values(each.stored).numel()
        results.append(counts)
    return results
