"""Random models and layouts, and a reshard plan executed in memory with NumPy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import MlaDescription, ModelDescription, MoeDescription
from mindrl.models.placement import Box, LocalTensor, Placement, ShardingTable, index_of
from mindrl.models.sharding import Sharding
from mindrl.resharding.plan import ReshardPlan, Topology, Transfer, plan_reshard

Arrays = dict[str, NDArray[np.float64]]
FAMILIES = ("qwen2", "qwen3", "qwen3_moe", "deepseek")


@st.composite
def models(draw: st.DrawFn, families: Sequence[str] = FAMILIES) -> ModelDescription:
    """Draw a family and sizes that most tensor-parallel sizes divide."""
    family = draw(st.sampled_from(families))
    layers = draw(st.integers(1, 4))
    groups = draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    heads = 12
    dense = draw(st.sets(st.integers(0, layers - 1), max_size=1))
    moe = MoeDescription(
        num_experts=draw(st.sampled_from([4, 8, 12])),
        num_experts_per_tok=2,
        intermediate_size=12,
        shared_intermediate_size=12 if family == "deepseek" else 0,
        score_correction_bias=family == "deepseek" and draw(st.booleans()),
        dense_layers=frozenset(dense),
    )
    mla = MlaDescription(
        q_lora_rank=draw(st.sampled_from([None, 12])),
        kv_lora_rank=9,
        qk_nope_head_dim=2,
        qk_rope_head_dim=3,
        v_head_dim=2,
    )
    return ModelDescription(
        model_type=family,
        num_hidden_layers=layers,
        hidden_size=draw(st.sampled_from([4, 6])),
        intermediate_size=12 * draw(st.integers(1, 2)),
        num_attention_heads=heads,
        num_key_value_heads=heads if family == "deepseek" else groups,
        head_dim=draw(st.sampled_from([1, 2])),
        vocab_size=draw(st.integers(6, 30)),
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        max_position_embeddings=64,
        tie_word_embeddings=draw(st.booleans()),
        attention_bias=family == "qwen2",
        qk_norm=family.startswith("qwen3"),
        moe=moe if family in ("qwen3_moe", "deepseek") else None,
        mla=mla if family == "deepseek" else None,
    )


@st.composite
def training_layouts(draw: st.DrawFn, model: ModelDescription, world: int) -> TrainLayout:
    """Draw any legal layout of a model over some ranks."""
    layers = model.num_hidden_layers
    tp = draw(st.sampled_from([tp for tp in divisors(world) if _attention_fits(model, tp)]))
    pp = draw(st.sampled_from([pp for pp in divisors(world // tp) if pp <= layers]))
    cp = draw(st.sampled_from(divisors(world // tp // pp)))
    vpp = draw(st.sampled_from([v for v in (1, 2) if v == 1 or (pp > 1 and pp * v <= layers)]))
    ep = etp = 1
    if model.moe:
        room, moe = world // pp, model.moe
        ep = draw(st.sampled_from([e for e in divisors(room) if moe.num_experts % e == 0]))
        etp = draw(
            st.sampled_from([e for e in divisors(room // ep) if moe.intermediate_size % e == 0])
        )
    return TrainLayout(
        tp=tp,
        pp=pp,
        cp=cp,
        dp=world // tp // pp // cp,
        vpp=vpp,
        ep=ep,
        etp=etp,
        layers_per_chunk=draw(_chunks(layers, pp * vpp)),
    )


@st.composite
def rollout_layouts(draw: st.DrawFn, model: ModelDescription, world: int) -> RolloutLayout:
    """Draw any layout that vLLM can have of a model over some ranks."""
    # The padded vocabulary, a multiple of 64, must be cut evenly.
    fitting = [tp for tp in divisors(world) if _attention_fits(model, tp) and 64 % tp == 0]
    tp = draw(st.sampled_from(fitting))
    pp = draw(
        st.sampled_from([pp for pp in divisors(world // tp) if pp <= model.num_hidden_layers])
    )
    dp = world // tp // pp
    parts = [1]
    if model.moe:
        most = model.moe.num_experts
        parts += [tp * d for d in divisors(dp) if 1 < tp * d <= most]
    return RolloutLayout(tp=tp, pp=pp, dp=dp, ep=draw(st.sampled_from(parts)))


@st.composite
def shardings(draw: st.DrawFn, shapes: dict[str, tuple[int, ...]], world: int) -> Sharding:
    """Draw a side that no model has: every tensor is cut anyhow, each box has random holders."""
    tables: list[dict[str, LocalTensor]] = [{} for _ in range(world)]
    for name, shape in shapes.items():
        for index, box in enumerate(draw(_tiling(shape))):
            local = tuple((0, stop - start) for start, stop in box)
            entry = LocalTensor(
                shape=tuple(stop for _, stop in local),
                placements=(Placement(tensor=name, source=box, local=local),),
            )
            for rank in draw(st.sets(st.integers(0, world - 1), min_size=1)):
                tables[rank][f"{name}/{index}"] = entry
    return Sharding(
        shards={str(rank): table for rank, table in enumerate(tables)},
        held_by=tuple((str(rank),) for rank in range(world)),
        dtype=draw(st.sampled_from(["float32", "bfloat16"])),
    )


def divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]


def _attention_fits(model: ModelDescription, tp: int) -> bool:
    groups, heads = model.num_key_value_heads, model.num_attention_heads
    rows_fit = (heads + 2 * groups) * model.head_dim % tp == 0
    latent = model.mla is None or (model.mla.kv_lora_rank + model.mla.qk_rope_head_dim) % tp == 0
    return heads % tp == 0 and (groups % tp == 0 or tp % groups == 0) and rows_fit and latent


def _chunks(layers: int, count: int) -> st.SearchStrategy[tuple[int, ...] | None]:
    uneven = st.permutations([layers - count + 1] + [1] * (count - 1)).map(tuple)
    return st.none() | uneven if layers % count == 0 else uneven


@st.composite
def _tiling(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Cut a tensor into disjoint boxes, not always a grid."""
    boxes: list[Box] = [tuple((0, size) for size in shape)]
    for _ in range(draw(st.integers(0, 3))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        start, stop = box[dim]
        cut = draw(st.integers(start, stop))
        halves = ((start, cut), (cut, stop))
        boxes += [(*box[:dim], half, *box[dim + 1 :]) for half in halves if half[0] < half[1]]
    return boxes


@dataclass
class Memory:
    """The local tensors of every rank on both sides, and how often each element was written."""

    source: list[Arrays]
    target: list[Arrays]
    writes: list[Arrays]


def numbered(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """Give every element of every logical tensor a number of its own."""
    arrays, first = {}, 1
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        arrays[name] = np.arange(first, first + size, dtype=np.float64).reshape(shape)
        first += size
    return arrays


def shards_of(table: ShardingTable, logical: Arrays) -> Arrays:
    """Cut a rank's local tensors out of the logical ones; padding is 0."""
    arrays = {}
    for name, entry in table.items():
        arrays[name] = np.zeros(entry.shape)
        for placement in entry.placements:
            part = logical[placement.tensor][index_of(placement.source)]
            turned(arrays[name][index_of(placement.local)], placement.axes)[...] = part
    return arrays


def turned(part: NDArray[np.float64], axes: tuple[int, ...] | None) -> NDArray[np.float64]:
    """Look at a part of a local tensor with the dimensions of the logical one."""
    if axes is None:
        return part
    others = [axis for axis in range(part.ndim) if axis not in axes]
    moved = np.transpose(part, (*axes, *others))
    return (
        moved.reshape(moved.shape[: len(axes)]) if not others else moved[(..., *[0] * len(others))]
    )


def carry_out(plan: ReshardPlan, source: Sharding, target: Sharding, logical: Arrays) -> Memory:
    """Run a plan in memory: round by round, messages packed before any is unpacked."""
    world = plan.world_size
    memory = Memory(
        source=[shards_of(source.table(rank), logical) for rank in range(world)],
        target=[{n: np.zeros(e.shape) for n, e in target.table(r).items()} for r in range(world)],
        writes=[{n: np.zeros(e.shape) for n, e in target.table(r).items()} for r in range(world)],
    )
    steps = [plan.of_rank(rank) for rank in range(world)]
    for index in range(plan.rounds):
        mail: dict[tuple[int, int], list[NDArray[np.float64]]] = {}
        for rank in range(world):
            step = steps[rank][index]
            for transfer in step.copies:
                _write(memory, rank, transfer, _read(memory, rank, transfer))
            for peer, transfers in step.sends.items():
                mail[rank, peer] = [_read(memory, rank, transfer).copy() for transfer in transfers]
        arriving = [
            (rank, peer, transfers)
            for rank in range(world)
            for peer, transfers in steps[rank][index].receives.items()
        ]
        for rank, peer, transfers in arriving:
            for transfer, part in zip(transfers, mail.pop((peer, rank)), strict=True):
                _write(memory, rank, transfer, part)
        assert not mail, "a message that nobody receives"
    return memory


def _read(memory: Memory, rank: int, transfer: Transfer) -> NDArray[np.float64]:
    place = transfer.source
    return turned(memory.source[rank][place.name][index_of(place.box)], place.axes)


def _write(memory: Memory, rank: int, transfer: Transfer, part: NDArray[np.float64]) -> None:
    place = transfer.slice.target
    turned(memory.target[rank][place.name][index_of(place.box)], place.axes)[...] = part
    turned(memory.writes[rank][place.name][index_of(place.box)], place.axes)[...] += 1


def masks(
    sharding: Sharding, rank: int, shapes: dict[str, tuple[int, ...]]
) -> dict[str, NDArray[np.bool_]]:
    """Mark the elements of the logical tensors that a rank has on a side."""
    marked = {name: np.zeros(shape, dtype=bool) for name, shape in shapes.items()}
    for entry in sharding.table(rank).values():
        for placement in entry.placements:
            marked[placement.tensor][index_of(placement.source)] = True
    return marked


def fewest_bytes(
    source: Sharding, target: Sharding, shapes: dict[str, tuple[int, ...]]
) -> list[int]:
    """Count element by element what each rank needs and does not hold."""
    counts = []
    for rank in range(len(source.held_by)):
        held, needed = masks(source, rank, shapes), masks(target, rank, shapes)
        counts.append(
            sum(
                int((needed[name] & ~held[name]).sum())
                * min(source.element_bytes(name), target.element_bytes(name))
                for name in shapes
            )
        )
    return counts


def shapes_of(model: ModelDescription) -> dict[str, tuple[int, ...]]:
    return logical_shapes(model)


def check(
    source: Sharding,
    target: Sharding,
    shapes: dict[str, tuple[int, ...]],
    topology: Topology,
    bucket: int,
) -> ReshardPlan:
    """Plan, carry out in memory, and hold the result against the tables alone."""
    plan = plan_reshard(source, target, topology, bucket_bytes=bucket)
    logical = numbered(shapes)
    memory = carry_out(plan, source, target, logical)
    fewest = fewest_bytes(source, target, shapes)
    assert plan.received.tolist() == fewest
    assert plan.lower_bound.tolist() == fewest
    assert plan.sent.sum() == plan.received.sum()
    assert (plan.peak_staging <= bucket).all()
    for rank in range(plan.world_size):
        expected = shards_of(target.table(rank), logical)
        for name, values in memory.target[rank].items():
            assert np.array_equal(values, expected[name]), name
            # Written once where there is a number, never where there is padding.
            assert np.array_equal(memory.writes[rank][name], (expected[name] > 0) * 1.0), name
    return plan
