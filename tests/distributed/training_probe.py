"""What the tests of the training side call in prepared processes; see forked_workers.run.

Shapes: B sequences, T positions, N tokens, V the vocabulary.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from training_messages import Course, OffloadFacts, Side, Updated

from mindrl.allocation.regions import TrainRegion
from mindrl.batch.experience import Scored, Sequences
from mindrl.errors import ModelError
from mindrl.models.description import read_description
from mindrl.models.qwen2 import logical_shapes, training_table
from mindrl.resharding.gather import GatherReshard, ReshardReport
from mindrl.training.actor import TrainedModel
from mindrl.training.logprobs import vocab_parallel_logprobs
from mindrl.training.model import ModelSettings
from mindrl.training.offload import StorageOffloader
from mindrl.training.optimizer import OptimizerSettings
from mindrl.training.parallel import initialise_model_parallel
from mindrl.training.scoring import ReferenceModel, ScoringModel
from mindrl.training.weights import export_weights, import_weights


def build(side: Side) -> ScoringModel:
    """Build the model over all ranks of the group."""
    join()
    return ScoringModel(side.folder, settings(side), temperature=side.temperature)


def join() -> None:
    """Make Megatron's groups: all ranks are tensor-parallel."""
    initialise_model_parallel(tensor_parallel_size=dist.get_world_size(), seed=1)


def settings(side: Side) -> ModelSettings:
    """Return how the model is built on CPU."""
    return ModelSettings(
        seq_length=64,
        bf16=side.bf16,
        sequence_parallel=side.sequence_parallel,
        device_type="cpu",
    )


def logits(side: Side, sequences: Sequences) -> Tensor:
    """Return [B, T, V], this rank's part of the vocabulary."""
    with torch.no_grad():
        return build(side).logits(sequences)


def scores(side: Side, sequences: Sequences, micro_batch_sizes: list[int]) -> list[Scored]:
    """Score with the actor's class once for each size, then twice with the reference's."""
    model = build(side)
    results = [
        model.compute_log_prob(sequences, micro_batch_size=size) for size in micro_batch_sizes
    ]
    reference = ReferenceModel(side.folder, settings(side), temperature=side.temperature)
    results += [reference.compute_log_prob(sequences, micro_batch_size=2) for _ in range(2)]
    return results


def reference_bytes(side: Side, sequences: Sequences) -> list[int]:
    """Return the bytes of a reference's weights on the device: new, and after it scored."""
    join()
    reference = ReferenceModel(side.folder, settings(side), temperature=1.0)
    found = [_bytes(reference.model)]
    reference.compute_log_prob(sequences, micro_batch_size=2)
    return [*found, _bytes(reference.model)]


def _bytes(model: ScoringModel) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in model.local_tensors().values())


def updates(side: Side, course: Course) -> Updated:
    """Take one update per minibatch."""
    scoring = build(side)
    model = TrainedModel(scoring, OptimizerSettings(**course.optimizer), course.loss)
    metrics, device_bytes = [], []
    for minibatch in course.minibatches:
        metrics.append(model.update(minibatch, micro_batch_size=course.micro_batch_size))
        if course.swap:
            device_bytes.append(swap_out_and_in(model))
    gather = GatherReshard(
        scoring.tables, logical_shapes(scoring.description), scoring.tensor_parallel_group
    )
    whole = gather.tensors(scoring.local_tensors())
    return Updated(
        metrics=metrics,
        weights={name: tensor.clone() for name, tensor in whole},
        device_bytes=device_bytes,
    )


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


def gathered(folder: str, bucket_bytes: int) -> tuple[dict[str, Tensor], list[str], ReshardReport]:
    """Read this rank's part of the weights and gather the whole: tensors, order, bytes."""
    reshard, local = _read(folder, bucket_bytes)
    tensors = {name: tensor.clone() for name, tensor in reshard.tensors(local)}
    return tensors, list(tensors), reshard.report


def exported(folder: str, target: str) -> None:
    """Read the weights by the tables of one rank and write them to another folder."""
    reshard, local = _read(folder, 256 << 20)
    export_weights(folder, Path(target), reshard.tensors(local))


def _read(folder: str, bucket_bytes: int) -> tuple[GatherReshard, dict[str, Tensor]]:
    ranks = dist.get_world_size()
    model = read_description(folder)
    tables = [training_table(model, tp=ranks, tp_rank=rank) for rank in range(ranks)]
    table = tables[dist.get_rank()]
    # Not zeros: what the import leaves unfilled would show.
    local = {name: torch.full(entry.shape, torch.nan) for name, entry in table.items()}
    import_weights(folder, local, table)
    group = dist.group.WORLD
    assert group is not None
    return GatherReshard(tables, logical_shapes(model), group, bucket_bytes=bucket_bytes), local


def import_errors(folders: list[str]) -> list[str]:
    """Try to read the weights of each folder; returns what was wrong with it."""
    return [_import_error(folder) for folder in folders]


def _import_error(folder: str) -> str:
    try:
        _read(folder, 1 << 20)
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
