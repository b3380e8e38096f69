"""The messages of a round, and the memory that they travel in: always the device's."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mindrl.checkpoint.export import TORCH_TYPES, ExportedModel, TensorFile
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import DType, always_float32
from mindrl.models.description import ModelDescription
from mindrl.models.orientation import oriented
from mindrl.models.placement import whole
from mindrl.models.sharding import Sharding, full_sharding
from mindrl.resharding.exchange import Message, Staging, messages_of
from mindrl.resharding.figures import figures_of
from mindrl.resharding.plan import ReshardPlan, Topology, Transfer, plan_reshard
from mindrl.training.megatron.sharding import megatron_sharding

HOST, OTHER = torch.device("cpu"), torch.device("meta")
MODEL = ModelDescription(
    model_type="qwen2",
    num_hidden_layers=1,
    hidden_size=256,
    intermediate_size=1024,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=64,
    vocab_size=1024,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    attention_bias=True,
)
TRAINED = megatron_sharding(MODEL, TrainLayout(tp=2), dtype="float32")
WHOLE = full_sharding(MODEL, world_size=2, holders=[0], dtype="float32")


PLAN = plan_reshard(TRAINED, WHOLE, Topology(ranks_per_node=2), bucket_bytes=64 << 20)


def float32(_: str) -> torch.dtype:
    return torch.float32


def incoming(folder: Path, device: torch.device) -> Iterator[Message]:
    """Lay out what rank 0 receives for an export, whose sink is the host's memory."""
    table = WHOLE.table(0)
    file = TensorFile(folder / "model.safetensors", table, "float32")
    sink = ExportedModel(folder, dict.fromkeys(table, file))

    def target(transfer: Transfer) -> Tensor:
        place = transfer.slice.target
        return oriented(sink.open(place.name), place.box, place.axes)

    for step in PLAN.of_rank(0):
        yield from messages_of(step.receives, float32, target, Staging(device))


def outgoing(local: Callable[[tuple[int, ...]], Tensor]) -> Iterator[Message]:
    """Lay out what rank 1 sends, on a device of its own."""
    table = TRAINED.table(1)

    def read(transfer: Transfer) -> Tensor:
        place = transfer.source
        return oriented(local(table[place.name].shape), place.box, place.axes)

    for step in PLAN.of_rank(1):
        yield from messages_of(step.sends, float32, read, Staging(OTHER))


def test_an_export_into_the_memory_of_the_host_receives_in_that_of_the_device(
    tmp_path: Path,
) -> None:
    messages = list(incoming(tmp_path, OTHER))
    assert {message.memory.device.type for message in messages} == {"meta"}
    assert all(message.staged for message in messages)
    # Half of two embeddings, of seven matrices and three biases; rank 0 has the norms itself.
    whole = 2 * 1024 * 256 + 4 * 256 * 256 + 3 * 1024 * 256 + 3 * 256
    assert sum(message.memory.numel() for message in messages) == whole // 2


def test_where_both_are_the_host_large_pieces_arrive_in_their_place(tmp_path: Path) -> None:
    messages = list(incoming(tmp_path, HOST))
    direct = [message for message in messages if not message.staged]
    # Halves of two embeddings, and of both matrices that are cut by rows in the feed-forward part.
    assert sorted(message.memory.nbytes >> 10 for message in direct) == [512] * 4


@pytest.mark.parametrize(("at", "sends_directly"), [(OTHER, True), (HOST, False)])
def test_what_leaves_goes_by_the_memory_of_the_device_too(
    at: torch.device, sends_directly: bool
) -> None:
    messages = list(outgoing(lambda shape: torch.empty(shape, device=at)))
    assert {message.memory.device.type for message in messages} == {"meta"}
    assert sends_directly is any(not message.staged for message in messages)


SHAPES = {"a": (512, 512), "b": (8,), "c": (512, 512), "d": (8,), "e_score_correction_bias": (4,)}
NODE = Topology(ranks_per_node=2)


def side(rank: int, dtype: DType) -> Sharding:
    """Return a sharding of two ranks, one of which has all tensors."""
    table = {name: whole(name, shape) for name, shape in SHAPES.items()}
    held = [(str(rank),) if rank == each else () for each in range(2)]
    return Sharding(shards={str(rank): table}, held_by=tuple(held), dtype=dtype)


def sent(plan: ReshardPlan) -> list[Message]:
    """Lay out what two ranks send."""

    def wire_dtype(tensor: str) -> torch.dtype:
        return torch.float32 if always_float32(tensor) else TORCH_TYPES[plan.dtype]

    def view(transfer: Transfer) -> Tensor:
        sizes = [stop - start for start, stop in transfer.slice.box]
        return torch.empty(sizes, device=OTHER)

    steps = [step for rank in range(2) for step in plan.of_rank(rank)]
    return [
        message
        for step in steps
        for message in messages_of(step.sends, wire_dtype, view, Staging(OTHER))
    ]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    # Two large tensors alone; small ones together, apart from those of another dtype.
    [("float32", 2 + 1), ("bfloat16", 2 + 2)],
)
def test_as_many_messages_are_planned_as_are_laid_out(dtype: DType, expected: int) -> None:
    plan = plan_reshard(side(0, dtype), side(1, dtype), NODE, bucket_bytes=64 << 20)
    found = [figures_of(each, NODE, gbit_per_second=1.0).messages for each in (plan, PLAN)]
    assert found == [len(sent(plan)), len(sent(PLAN))]
    assert found[0] == expected
