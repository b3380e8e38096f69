"""What the tests of the training side call in prepared processes; see forked_workers.run.

Shapes: B sequences, T positions, N tokens, V the vocabulary.
"""

import gc
from collections.abc import Mapping
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

import archon_probe
import no_doubles
import torch
import torch.distributed as dist
from assembly import assembled
from megatron.core import parallel_state
from offload_probe import arena, swap_out_and_in
from own_device import device_type
from torch import Tensor, nn
from training_messages import Case, Course, Life, Trial, Updated, Weights
from training_shares import share, with_all_asked

from mindrl.batch.balance import MicroBatching
from mindrl.batch.sequences import Logprobs, Sequences
from mindrl.checkpoint.export import exported_model
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.role import LearningConfig
from mindrl.errors import ModelError
from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import ModelDescription, read_description
from mindrl.models.sharding import Sharding, full_sharding
from mindrl.platform.attention import attention_kernel
from mindrl.platform.patches.megatron_grouped_gemm import grouped_experts
from mindrl.training.engine import StatePart, TrainingEngine
from mindrl.training.first_weights import import_weights
from mindrl.training.logprobs import Vocabulary, chunked_logprobs
from mindrl.training.megatron.engine import MegatronEngine
from mindrl.training.megatron.model import ModelSettings, head_weight, unwrap
from mindrl.training.megatron.parallel import ParallelGroups
from mindrl.training.megatron.passes import forward_backward
from mindrl.training.megatron.sharding import megatron_sharding
from mindrl.training.packs import Pack
from mindrl.workers.device_regions import StoredRegion

_GROUPS: set[dist.ProcessGroup] = set()
"""Those that Megatron made last in this process."""


def of_any_engine(case: Case, optimizer: Mapping[str, Any] | None = None) -> TrainingEngine:
    """Build the model with the engine of the case."""
    return (build if case.backend == "megatron" else archon_probe.build)(case, optimizer)


def build(case: Case, optimizer: Mapping[str, Any] | None = None) -> MegatronEngine:
    """Build the model over all ranks of the group; the groups of its layout stay in place.

    With an optimizer it learns.
    """
    groups = join(case.layout)
    groups.activate()
    model = policy(case, groups, optimizer)
    for chunk in model.chunks:
        for module in chunk.modules():
            if isinstance(module, grouped_experts()):
                # It asks for bfloat16 before it multiplies whatever it has.
                module.config = copy(module.config)
                module.config.bf16 = True
    return model


def policy(
    case: Case, groups: ParallelGroups, optimizer: Mapping[str, Any] | None = None
) -> MegatronEngine:
    """Build the model on groups of its layout."""
    updates = None if optimizer is None else optimizer["updates"]
    made = settings(case, groups, optimizer)
    return MegatronEngine(case.folder, made, known(case.folder, made), updates=updates)


def known(folder: str, made: ModelSettings) -> tuple[ModelDescription, Sharding]:
    """Read what a model is, and return who holds which part of it."""
    model = read_description(folder)
    return model, megatron_sharding(
        model,
        made.layout,
        dtype="bfloat16" if made.training.bf16 else "float32",
        experts="grouped" if made.learning.moe_grouped_gemm else "sequential",
        head=made.head,
    )


def join(layout: TrainLayout) -> ParallelGroups:
    """Make Megatron's groups, and give earlier ones back."""
    # Megatron forgets most groups and leaves their threads: hundreds after a few layouts.
    made = dist.distributed_c10d._world.pg_map
    for group in _GROUPS & made.keys():
        dist.destroy_process_group(group)
    _GROUPS.clear()
    # A group ends its threads with its last reference: Megatron's list, and models in cycles.
    parallel_state._global_process_group_list = None
    gc.collect()
    others = set(made)
    groups = ParallelGroups(layout, seed=1, timeout_minutes=10)
    _GROUPS.update(made.keys() - others)
    assert not any(group.group_desc.endswith("GLOO") for group in _GROUPS)
    return groups


def refusal(layout: TrainLayout) -> str:
    """Return why a layout cannot be trained in."""
    try:
        join(layout)
    except AssertionError as error:
        return str(error)
    return ""


def settings(
    case: Case, groups: ParallelGroups, optimizer: Mapping[str, Any] | None = None
) -> ModelSettings:
    """Return how the model is built."""
    asked = {**case.settings, **(optimizer or {})}
    asked.pop("updates", None)
    learning, training = (
        {each.name: asked.pop(each.name) for each in fields(section) if each.name in asked}
        for section in (LearningConfig, MegatronTrainingConfig)
    )
    return ModelSettings(
        layout=case.layout,
        groups=groups,
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


def logprobs(model: MegatronEngine, sequences: Sequences, cut: MicroBatching) -> Logprobs | None:
    """Ask a model with a vocabulary."""
    read = model.forward(sequences, cut)
    return None if read is None else Logprobs(logprobs_BT=read[0])


def held(cases: list[Case]) -> list[Weights]:
    """Build one model after the other; returns what this rank holds of each."""
    return [copied(build(case)) for case in cases]


def copied(model: TrainingEngine) -> Weights:
    """Copy this rank's tensors."""
    return {name: tensor.to("cpu", copy=True) for name, tensor in model.local_tensors().items()}


def logits(cases: list[Case], sequences: Sequences) -> list[Tensor]:
    """Return [B, T, V] of each model; see `_logits`."""
    results = []
    for case in cases:
        model = build(case)
        results.append(_logits(model.chunks, model.packs([with_all_asked(sequences)])))
    return results


def _logits(chunks: list[nn.Module], packs: list[Pack[Sequences]]) -> Tensor:
    """Return the logits of this rank's tokens and part of the vocabulary, 0 for other tokens.

    Empty on all but the last pipeline stage.
    """

    def multiply(pack: Pack[Sequences], hidden_1SH: Tensor) -> tuple[Tensor, Tensor]:
        logits_NV = hidden_1SH[0, pack.predicting_N] @ head_weight(chunks[-1]).T
        B, T = pack.source.tokens_BT.shape
        flat = logits_NV.new_zeros(B * T, logits_NV.size(1))
        flat[pack.places_N - 1] = logits_NV
        return torch.zeros(()), flat.view(B, T, -1)

    found = forward_backward(chunks, packs, multiply, forward_only=True)
    return found[0] if found else torch.empty(0)


def scores(case: Case, sequences: Sequences, micro_batch_sizes: list[int]) -> list[Logprobs | None]:
    """Score this rank's share once for each size, then twice by a copy whose weights had left.

    A share of three sequences and one of a single one take different numbers of passes.
    """
    model, ours = build(case), share(case, sequences)
    cuts = [MicroBatching(sequences=size) for size in micro_batch_sizes]
    results = [logprobs(model, ours, cut) for cut in cuts]
    described = model.description, model.sharding
    source = model.local_tensors()
    model = MegatronEngine(case.folder, model.settings, described, source=source)
    weights = StoredRegion(model.state(StatePart.PARAMETERS), arena(64 << 20), device_type())
    for _ in range(2):
        weights.offload()
        weights.onload()
        results.append(logprobs(model, ours, MicroBatching(sequences=2)))
    return results


def updates(cases: list[Case], course: Course) -> list[Updated]:
    """Take one update per minibatch in each layout."""
    return [_updates(case, course) for case in cases]


def trials(courses: list[tuple[Case, Course]], sequences: Sequences) -> list[Trial]:
    """Build each model once; returns its logits and what the updates say."""
    results = []
    for case, course in courses:
        model = build(case, course.optimizer)
        logits = _logits(model.chunks, model.packs([with_all_asked(sequences)]))
        metrics = [
            model.train_step(share(case, minibatch), course.micro_batching, course.loss)
            for minibatch in course.minibatches
        ]
        results.append(Trial(logits_BTV=logits, metrics=metrics))
    return results


def lives(courses: list[tuple[Case, Course]], sequences: Sequences) -> list[Life]:
    """See `archon_probe.lives`, with the engine of each case."""
    return archon_probe.lives(courses, sequences, of_any_engine)


def gradients(
    case: Case, course: Course, cuts: list[MicroBatching]
) -> list[tuple[dict[str, float], Weights]]:
    """Return metrics and the whole gradient of one minibatch for each cut; no weight moves.

    Needs a course with a learning rate of 0 that clips nothing, and no parameter that is cut.
    """
    model = build(case, course.optimizer)
    (minibatch,) = course.minibatches
    results = []
    for cut in cuts:
        metrics = model.train_step(share(case, minibatch), cut, course.loss)
        results.append((metrics, _gradients(model)))
    return results


def _gradients(model: MegatronEngine) -> Weights:
    named = {
        f"chunk{index}.{name}": parameter
        for index, chunk in enumerate(model.chunks)
        for name, parameter in unwrap(chunk).named_parameters()
    }
    # Of ranks that do not cut their weights, after Megatron added up what the replicas found.
    return {name: named[name].main_grad.clone() for name in model.table if name in named}


def _updates(case: Case, course: Course) -> Updated:
    model = of_any_engine(case, course.optimizer)
    metrics, device_bytes = [], []
    for minibatch in course.minibatches:
        ours = share(case, minibatch)
        metrics.append(model.train_step(ours, course.micro_batching, course.loss))
        if course.swap:
            device_bytes.append(swap_out_and_in(model))
    return Updated(metrics=metrics, weights=copied(model), device_bytes=device_bytes)


def swapped(cases: list[Case], course: Course) -> list[Updated]:
    """Take everything off the device and bring it back in each layout; nothing is trained."""
    results = []
    for case in cases:
        model = build(case, course.optimizer)
        stayed = swap_out_and_in(model)
        weights = copied(model)
        results.append(Updated(metrics=[], weights=weights, device_bytes=[stayed]))
    return results


def logprobs_over_ranks(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    grads_2N: Tensor,
    temperature: float,
    chunks: list[int],
) -> list[list[Tensor]]:
    """Give each rank its part of the vocabulary, and logits of some tokens at a time.

    Returns:
        For each size of a chunk: log-probs, entropies, this rank's gradients of both inputs.
    """
    no_doubles.allow("the vocabulary over ranks is compared in float64")
    ranks, rank, group = dist.get_world_size(), dist.get_rank(), dist.group.WORLD
    assert group is not None
    part = -(-len(weight_VH) // ranks)
    # What lies behind the vocabulary was never written.
    padded_VH = weight_VH.new_full((ranks * part, weight_VH.size(1)), torch.nan)
    padded_VH[: len(weight_VH)] = weight_VH
    found = []
    for chunk in chunks:
        hidden_leaf_NH = hidden_NH.clone().requires_grad_()
        own_leaf_VH = padded_VH[rank * part : (rank + 1) * part].clone().requires_grad_()
        vocabulary = Vocabulary(
            size=len(weight_VH),
            first_token=rank * part,
            group=group,
            temperature=temperature,
            chunk_tokens=chunk,
        )
        both = chunked_logprobs(hidden_leaf_NH, own_leaf_VH, targets_N, vocabulary)
        grads = torch.autograd.grad(both, (hidden_leaf_NH, own_leaf_VH), tuple(grads_2N))
        found.append([value.detach() for value in (*both, *grads)])
    return found


def exported(folder: str, target: str, shard_bytes: int) -> None:
    """Read the weights by the tables of one rank and write them to another folder."""
    whole = assembled(folder, TrainLayout(), [read(folder)])
    model = read_description(folder)
    table = full_sharding(model, world_size=1, holders=[0], dtype="float32").table(0)
    with exported_model(
        folder, Path(target), table, dtype="float32", shard_bytes=shard_bytes
    ) as sink:
        for name, tensor in whole.items():
            sink.open(name).copy_(tensor)
            sink.close(name)


def read(folder: str) -> Weights:
    """Read the weights by the tables of one rank."""
    table = megatron_sharding(read_description(folder), TrainLayout(), dtype="float32").table(0)
    # Not zeros: what the import leaves unfilled would show.
    local = {name: torch.full(entry.shape, torch.nan) for name, entry in table.items()}
    import_weights(folder, local, table)
    return local


def import_errors(folders: list[str]) -> list[str]:
    """Try to read the weights of each folder; returns what was wrong with it."""
    return [_import_error(folder) for folder in folders]


def _import_error(folder: str) -> str:
    try:
        read(folder)
    except ModelError as error:
        return str(error)
    return "read without an error"
