"""What the tests of the training side call in prepared processes; see forked_workers.run.

Shapes: B sequences, T positions, N tokens, V the vocabulary.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import torch
import torch.distributed as dist
from assembly import assembled
from megatron.core import parallel_state
from megatron.core.transformer.moe import grouped_gemm_util
from torch import Tensor
from training_messages import Case, Course, OffloadFacts, Updated, Weights

from mindrl.allocation.layout import TrainLayout
from mindrl.allocation.regions import TrainRegion
from mindrl.batch.experience import Scored, Sequences
from mindrl.errors import ModelError
from mindrl.models.decoder import training_side, whole_side
from mindrl.models.description import read_description
from mindrl.training.actor import TrainedModel
from mindrl.training.export import ExportedModel
from mindrl.training.logprobs import vocab_parallel_logprobs
from mindrl.training.model import ModelSettings, build_model, transformer_config
from mindrl.training.offload import StorageOffloader
from mindrl.training.optimizer import OptimizerSettings
from mindrl.training.parallel import initialise_model_parallel
from mindrl.training.scoring import ReferenceModel, ScoringModel
from mindrl.training.weights import check_table, import_weights, local_tensors

Share = TypeVar("Share", bound=Sequences)


def build(case: Case) -> ScoringModel:
    """Build the model over all ranks of the group."""
    join(case.layout)
    return ScoringModel(case.folder, settings(case), temperature=case.temperature)


def join(layout: TrainLayout) -> None:
    """Make Megatron's groups, in place of earlier ones."""
    parallel_state.destroy_model_parallel()
    initialise_model_parallel(layout, seed=1)


def refusal(layout: TrainLayout) -> str:
    """Return why a layout cannot be trained in."""
    try:
        join(layout)
    except AssertionError as error:
        return str(error)
    return ""


def settings(case: Case) -> ModelSettings:
    """Return how the model is built on CPU."""
    return ModelSettings(
        layout=case.layout,
        seq_length=64,
        bf16=case.bf16,
        sequence_parallel=case.sequence_parallel,
        device_type="cpu",
    )


def held(cases: list[Case]) -> list[Weights]:
    """Build one model after the other; returns what this rank holds of each."""
    return [copied(build(case)) for case in cases]


def copied(model: ScoringModel) -> Weights:
    """Copy this rank's tensors."""
    return {name: tensor.clone() for name, tensor in model.local_tensors().items()}


def logits(cases: list[Case], sequences: Sequences) -> list[Tensor]:
    """Return [B, T, V] of each model, this rank's part of the vocabulary."""
    with torch.no_grad():
        return [build(case).logits(sequences) for case in cases]


def grouped_logits(case: Case, sequences: Sequences) -> Tensor:
    """Return [B, T, V] of a model whose experts are one of Megatron's `GroupedMLP`."""
    # Megatron multiplies by a library that needs a GPU; in its place, the definition.
    grouped_gemm_util.grouped_gemm = grouped_gemm_util.ops = SimpleNamespace(gmm=_multiplied)
    join(case.layout)
    model = read_description(case.folder)
    config = transformer_config(model, settings(case))
    config.moe_grouped_gemm = config.moe_use_legacy_grouped_gemm = True
    chunks = build_model(model, config, settings(case))
    # GroupedMLP asks for bfloat16 before it multiplies whatever it has.
    config.bf16 = True
    side = training_side(model, case.layout, dtype="float32", experts="grouped")
    table = side.table(dist.get_rank())
    check_table(chunks, table)
    import_weights(case.folder, local_tensors(chunks, table), table)
    tokens_BT = sequences.tokens_BT
    positions_BT = torch.arange(tokens_BT.size(1)).expand_as(tokens_BT)
    with torch.no_grad():
        return chunks[0](tokens_BT, positions_BT, None)


def _multiplied(rows: Tensor, experts: Tensor, counts: Tensor, *, trans_b: bool) -> Tensor:
    assert not trans_b
    parts = zip(rows.split(counts.tolist()), experts, strict=True)
    return torch.cat([part @ expert for part, expert in parts])


def share(case: Case, sequences: Share) -> Share:
    """Take what this rank's replica gets of a batch."""
    replica = case.layout.replica_of(dist.get_rank())
    if case.shares is None:
        return sequences.shard(replica, case.layout.dp)
    start = sum(case.shares[:replica])
    return sequences.rows(slice(start, start + case.shares[replica]))


def scores(case: Case, sequences: Sequences, micro_batch_sizes: list[int]) -> list[Scored]:
    """Score this rank's share with the actor's class once for each size, then twice as reference.

    A share of three sequences and one of a single one take different numbers of passes.
    """
    model, ours = build(case), share(case, sequences)
    results = [model.compute_log_prob(ours, micro_batch_size=size) for size in micro_batch_sizes]
    reference = ReferenceModel(case.folder, settings(case), temperature=case.temperature)
    results += [reference.compute_log_prob(ours, micro_batch_size=2) for _ in range(2)]
    return results


def reference_bytes(case: Case, sequences: Sequences) -> list[int]:
    """Return the bytes of a reference's weights on the device: new, and after it scored."""
    join(case.layout)
    reference = ReferenceModel(case.folder, settings(case), temperature=1.0)
    found = [_bytes(reference.model)]
    reference.compute_log_prob(sequences, micro_batch_size=2)
    return [*found, _bytes(reference.model)]


def _bytes(model: ScoringModel) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in model.local_tensors().values())


def updates(cases: list[Case], course: Course) -> list[Updated]:
    """Take one update per minibatch in each layout."""
    return [_updates(case, course) for case in cases]


def _updates(case: Case, course: Course) -> Updated:
    scoring = build(case)
    model = TrainedModel(scoring, OptimizerSettings(**course.optimizer), course.loss)
    metrics, device_bytes = [], []
    for minibatch in course.minibatches:
        ours = share(case, minibatch)
        metrics.append(model.update(ours, micro_batch_size=course.micro_batch_size))
        if course.swap:
            device_bytes.append(swap_out_and_in(model))
    return Updated(metrics=metrics, weights=copied(scoring), device_bytes=device_bytes)


def swapped(cases: list[Case], course: Course) -> list[Updated]:
    """Take everything off the device and bring it back in each layout; nothing is trained."""
    results = []
    for case in cases:
        scoring = build(case)
        model = TrainedModel(scoring, OptimizerSettings(**course.optimizer), course.loss)
        stayed = swap_out_and_in(model)
        weights = copied(scoring)
        results.append(Updated(metrics=[], weights=weights, device_bytes=[stayed]))
    return results


def swap_out_and_in(model: TrainedModel) -> int:
    """Take all regions off the device and bring them back; returns the bytes that stayed."""
    order = (TrainRegion.OPTIMIZER, TrainRegion.GRADIENTS, TrainRegion.PARAMETERS)
    for region in order:
        model.offload(region)
    stayed = sum(
        tensor.untyped_storage().nbytes() for region in order for tensor in model.tensors(region)
    )
    for region in reversed(order):
        model.onload(region)
    return stayed


def logprobs_over_ranks(
    logits_NV: Tensor, targets_N: Tensor, grads_2N: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Give each rank its part of the vocabulary; returns values and this rank's gradient."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    part = logits_NV.size(1) // ranks
    group = dist.group.WORLD
    assert group is not None
    ours_NV = logits_NV[:, rank * part : (rank + 1) * part].clone().requires_grad_()
    logprobs_N, entropy_N = vocab_parallel_logprobs(
        ours_NV, targets_N, first_token=rank * part, group=group
    )
    (grad_NV,) = torch.autograd.grad((logprobs_N, entropy_N), ours_NV, tuple(grads_2N))
    return logprobs_N.detach(), entropy_N.detach(), grad_NV


def exported(folder: str, target: str, shard_bytes: int) -> None:
    """Read the weights by the tables of one rank and write them to another folder."""
    whole = assembled(folder, TrainLayout(), [read(folder)])
    model = read_description(folder)
    table = whole_side(model, world_size=1, holders=[0], dtype="float32").table(0)
    with ExportedModel(
        folder, Path(target), table, dtype="float32", shard_bytes=shard_bytes
    ) as sink:
        for name, tensor in whole.items():
            sink.open(name).copy_(tensor)
            sink.close(name)


def read(folder: str) -> Weights:
    """Read the weights by the tables of one rank."""
    table = training_side(read_description(folder), TrainLayout(), dtype="float32").table(0)
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


def offload_facts() -> OffloadFacts:
    """Move a storage with two views, and a single one, out and in, twice; then drop it."""
    flat = torch.arange(6.0)
    head, tail = flat[:2], flat[2:]
    other = torch.full((3,), 7.0)
    offloader = StorageOffloader()
    out_bytes = offloader.offload([flat, head, tail, other], keep=True)
    bytes_while_out = flat.untyped_storage().nbytes() + other.untyped_storage().nbytes()
    again_bytes = offloader.offload([flat, other], keep=True)
    in_bytes = offloader.onload([tail, other], kept=True)
    tail += 10
    kept = [tensor.tolist() for tensor in (flat, head, tail, other)]
    shared = tail.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    offloader.offload([flat, other], keep=True)
    offloader.onload([flat, other], kept=True)
    host_copies = len(offloader.host)
    dropped_bytes = offloader.offload([head], keep=False)
    offloader.onload([head], kept=False)
    return OffloadFacts(
        out_bytes=out_bytes,
        bytes_while_out=bytes_while_out,
        again_bytes=again_bytes,
        in_bytes=in_bytes,
        kept=kept,
        share_storage=shared,
        dropped_bytes=dropped_bytes,
        dropped=flat.tolist(),
        host_copies=host_copies,
    )
