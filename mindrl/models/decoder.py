"""The decoder of every family, and who holds which part of it on each side.

A side deals its tensors out in shards: a shard is what all ranks with the same coordinates hold,
so a thousand ranks need no thousand tables.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.attention import attention_shapes, rollout_attention, training_attention
from mindrl.models.description import ModelDescription, MoeDescription
from mindrl.models.feed_forward import (
    ExpertStorage,
    dealt_experts,
    feed_forward_shapes,
    rollout_experts,
    rollout_feed_forward,
    training_experts,
    training_feed_forward,
)
from mindrl.models.placement import LocalTensor, ShardingTable, part_of, stack, whole

DType = Literal["float32", "bfloat16"]
Head = Literal["vocabulary", "value"]
"""What the last hidden states become: the logits of tokens, or one number."""
ELEMENT_BYTES: Mapping[DType, int] = {"float32": 4, "bfloat16": 2}

VALUE_HEAD = "score.weight"
_EMBEDDING, _HEAD, _NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
_ROLLOUT_VOCABULARY_MULTIPLE = 64


class LazyTables(Mapping[str, ShardingTable]):
    """Tables by the shard's name, each made when it is first asked for: many a plan needs few."""

    def __init__(self) -> None:
        """Hold none."""
        self._makers: dict[str, Callable[[], ShardingTable]] = {}
        self._made: dict[str, ShardingTable] = {}

    def add(self, name: str, maker: Callable[[], ShardingTable]) -> None:
        """Name a table; the first maker of a name stays."""
        self._makers.setdefault(name, maker)

    def __getitem__(self, name: str) -> ShardingTable:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


@dataclass(frozen=True, kw_only=True)
class Side:
    """Who holds what: the shards of a model and the ranks that hold them."""

    shards: Mapping[str, ShardingTable]
    """Tables by the shard's name. The shards of one rank have no local name in common."""
    held_by: tuple[tuple[str, ...], ...]
    """Shards of each rank of the world; empty for a rank that is not on this side."""
    dtype: DType
    """Of all tensors but those that are always float32."""
    twins: Mapping[str, str] = field(default_factory=dict)
    """Shards whose local tensors have the names and shapes of another shard's, and that shard."""

    def table(self, rank: int) -> ShardingTable:
        """Return all that a rank holds."""
        return {
            name: entry
            for shard in self.held_by[rank]
            for name, entry in self.shards[shard].items()
        }

    def element_bytes(self, tensor: str) -> int:
        """Return the bytes of an element of a logical tensor on this side."""
        return 4 if always_float32(tensor) else ELEMENT_BYTES[self.dtype]


def always_float32(tensor: str) -> bool:
    """Say whether a logical tensor is float32 whatever the model's type."""
    return tensor.endswith("e_score_correction_bias")


def logical_shapes(
    model: ModelDescription, *, head: Head = "vocabulary"
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each logical tensor, in the order of the layers."""
    hidden = model.hidden_size
    shapes: dict[str, tuple[int, ...]] = {_EMBEDDING: (model.vocab_size, hidden)}
    for index in range(model.num_hidden_layers):
        layer = f"model.layers.{index}."
        shapes |= attention_shapes(model, layer) | feed_forward_shapes(model, index, layer)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{name}.weight"] = (hidden,)
    shapes[_NORM] = (hidden,)
    if head == "value":
        shapes[VALUE_HEAD] = (1, hidden)
    elif not model.tie_word_embeddings:
        shapes[_HEAD] = (model.vocab_size, hidden)
    return shapes


def padded_vocab_size(model: ModelDescription, tp: int) -> int:
    """Return the training side's vocabulary: rounded up to a multiple of tp."""
    return -(-model.vocab_size // tp) * tp


def rollout_vocab_size(model: ModelDescription) -> int:
    """Return the rollout side's vocabulary: rounded up to a multiple of 64, whatever tp is."""
    multiple = _ROLLOUT_VOCABULARY_MULTIPLE
    return -(-model.vocab_size // multiple) * multiple


def training_side(
    model: ModelDescription,
    layout: TrainLayout,
    *,
    dtype: DType,
    experts: ExpertStorage = "sequential",
    head: Head = "vocabulary",
) -> Side:
    """Return who holds what on the training side.

    Local names are Megatron's, behind the chunk that they belong to: `chunk0.decoder...`.
    """
    tables, twins, held_by = LazyTables(), {}, []
    for rank in range(layout.world_size):
        dense = layout.dense_order.coordinates[rank]
        stage, tp_rank = dense["pp"], dense["tp"]
        names = [f"stage {stage}, tensor {tp_rank}"]
        tables.add(names[0], partial(_training_dense, model, layout, head, (stage, tp_rank)))
        twins[names[0]] = f"stage {stage}, tensor 0"
        if model.moe:
            place = layout.experts_order.coordinates[rank]
            assert place["pp"] == stage, "the stages of both grids must agree"
            names.append(f"stage {stage}, expert {place['ep']}, expert tensor {place['etp']}")
            tables.add(names[1], partial(_training_experts, model, layout, experts, place))
            twins[names[1]] = f"stage {stage}, expert 0, expert tensor 0"
        held_by.append(tuple(names))
    return Side(shards=tables, held_by=tuple(held_by), dtype=dtype, twins=twins)


def rollout_side(model: ModelDescription, layout: RolloutLayout, *, dtype: DType) -> Side:
    """Return who holds what on the rollout side; local names are vLLM's."""
    tables, twins, held_by = LazyTables(), {}, []
    for rank in range(layout.world_size):
        stage, tp_rank = layout.stage_of(rank), layout.tensor_rank_of(rank)
        names = [f"stage {stage}, tensor {tp_rank}"]
        tables.add(names[0], partial(_rollout_dense, model, layout, stage, tp_rank))
        twins[names[0]] = f"stage {stage}, tensor 0"
        if model.moe:
            part = layout.expert_rank_of(rank) if layout.ep > 1 else tp_rank
            names.append(f"stage {stage}, experts {part}")
            tables.add(names[1], partial(_rollout_experts, model, layout, stage, part))
            twins[names[1]] = (
                f"stage {stage}, experts {_first_with_as_many(model.moe, layout, part)}"
            )
        held_by.append(tuple(names))
    return Side(shards=tables, held_by=tuple(held_by), dtype=dtype, twins=twins)


def _first_with_as_many(moe: MoeDescription, layout: RolloutLayout, part: int) -> int:
    """Return the first expert-parallel rank with as many experts: the first may have one more."""
    with_one_more = moe.num_experts % layout.ep
    return with_one_more if part >= with_one_more else 0


def whole_side(
    model: ModelDescription,
    *,
    world_size: int,
    holders: Sequence[int],
    dtype: DType,
    head: Head = "vocabulary",
) -> Side:
    """Return a side whose holders have every logical tensor whole, under its own name."""
    shapes = logical_shapes(model, head=head)
    table = {name: whole(name, shape) for name, shape in shapes.items()}
    held_by = tuple(("whole",) if rank in holders else () for rank in range(world_size))
    return Side(shards={"whole": table}, held_by=held_by, dtype=dtype)


def elsewhere(side: Side, *, first_rank: int, world_size: int) -> Side:
    """Return the same side on the ranks from `first_rank` on, in a larger world."""
    after = world_size - first_rank - len(side.held_by)
    held_by = ((),) * first_rank + side.held_by + ((),) * after
    return replace(side, held_by=held_by)


def _training_dense(
    model: ModelDescription, layout: TrainLayout, head: Head, place: tuple[int, int]
) -> ShardingTable:
    stage, tp_rank = place
    table: dict[str, LocalTensor] = {}
    chunks = layout.chunks(model.num_hidden_layers)
    for chunk in range(layout.vpp):
        at = chunk * layout.pp + stage
        for position, index in enumerate(chunks[at]):
            local = f"chunk{chunk}.decoder.layers.{position}."
            table |= _training_layer(model, index, local, layout.tp, tp_rank)
        ends = _training_ends(model, layout, head, (at, tp_rank))
        table |= {f"chunk{chunk}.{name}": entry for name, entry in ends.items()}
    return table


def _training_layer(
    model: ModelDescription, index: int, local: str, tp: int, tp_rank: int
) -> ShardingTable:
    layer, hidden = f"model.layers.{index}.", (model.hidden_size,)
    return {
        f"{local}input_layernorm.weight": whole(f"{layer}input_layernorm.weight", hidden),
        **training_attention(model, local, layer, tp=tp, tp_rank=tp_rank),
        f"{local}pre_mlp_layernorm.weight": whole(
            f"{layer}post_attention_layernorm.weight", hidden
        ),
        **training_feed_forward(model, index, local, layer, tp=tp, tp_rank=tp_rank),
    }


def _training_ends(
    model: ModelDescription, layout: TrainLayout, head: Head, place: tuple[int, int]
) -> ShardingTable:
    """Return what a chunk holds besides layers: the embedding, the last norm, the head."""
    at, tp_rank = place
    table: dict[str, LocalTensor] = {}
    rows, last = padded_vocab_size(model, layout.tp) // layout.tp, layout.pp * layout.vpp - 1
    if at == 0:
        table["embedding.word_embeddings.weight"] = _vocabulary(model, _EMBEDDING, rows, tp_rank)
    if at == last:
        table["decoder.final_layernorm.weight"] = whole(_NORM, (model.hidden_size,))
        if head == "value":
            table["output_layer.weight"] = whole(VALUE_HEAD, (1, model.hidden_size))
        # A tied head is the embedding itself, or its copy where that is in another chunk.
        elif not model.tie_word_embeddings:
            table["output_layer.weight"] = _vocabulary(model, _HEAD, rows, tp_rank)
        elif at > 0:
            table["output_layer.weight"] = _vocabulary(model, _EMBEDDING, rows, tp_rank)
    return table


def _training_experts(
    model: ModelDescription, layout: TrainLayout, storage: ExpertStorage, place: Mapping[str, int]
) -> ShardingTable:
    assert model.moe is not None
    table: dict[str, LocalTensor] = {}
    chunks = layout.chunks(model.num_hidden_layers)
    parts = ((layout.ep, place["ep"]), (layout.etp, place["etp"]))
    for chunk in range(layout.vpp):
        for position, index in enumerate(chunks[chunk * layout.pp + place["pp"]]):
            if index not in model.moe.dense_layers:
                local, layer = f"chunk{chunk}.decoder.layers.{position}.", f"model.layers.{index}."
                table |= training_experts(model, local, layer, storage, parts)
    return table


def _rollout_dense(
    model: ModelDescription, layout: RolloutLayout, stage: int, tp_rank: int
) -> ShardingTable:
    table: dict[str, LocalTensor] = {}
    hidden, tp, first, last = model.hidden_size, layout.tp, stage == 0, stage == layout.pp - 1
    rows = rollout_vocab_size(model) // tp
    if first or (last and model.tie_word_embeddings):
        table[_EMBEDDING] = _vocabulary(model, _EMBEDDING, rows, tp_rank)
    for index in layout.chunks(model.num_hidden_layers)[stage]:
        layer = f"model.layers.{index}."
        table |= rollout_attention(model, layer, tp=tp, tp_rank=tp_rank)
        table |= rollout_feed_forward(model, index, layer, tp=tp, tp_rank=tp_rank)
        for name in ("input_layernorm", "post_attention_layernorm"):
            table[f"{layer}{name}.weight"] = whole(f"{layer}{name}.weight", (hidden,))
    if last:
        table[_NORM] = whole(_NORM, (hidden,))
        if not model.tie_word_embeddings:
            table[_HEAD] = _vocabulary(model, _HEAD, rows, tp_rank)
    return table


def _rollout_experts(
    model: ModelDescription, layout: RolloutLayout, stage: int, part: int
) -> ShardingTable:
    moe = model.moe
    assert moe is not None
    if layout.ep > 1:
        experts, bounds = dealt_experts(moe, layout.ep, part), (0, moe.intermediate_size)
    else:
        experts, bounds = range(moe.num_experts), part_of(moe.intermediate_size, layout.tp, part)
    table: dict[str, LocalTensor] = {}
    for index in layout.chunks(model.num_hidden_layers)[stage]:
        if index not in moe.dense_layers:
            table |= rollout_experts(model, f"model.layers.{index}.", experts, bounds)
    return table


def _vocabulary(model: ModelDescription, name: str, rows: int, tp_rank: int) -> LocalTensor:
    bounds = (tp_rank * rows, min((tp_rank + 1) * rows, model.vocab_size))
    return stack([(name, bounds)], tail=(model.hidden_size,), pad_to=rows)
