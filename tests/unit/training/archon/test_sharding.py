"""Sharding tables of the PyTorch engine: every element is on the rank of the layout."""

from dataclasses import replace
from math import prod

import numpy as np
from geometry import check, models, rollout_layouts, shapes_of, training_layouts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import most_at_night

from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import ModelDescription, MoeDescription
from mindrl.models.placement import Bounds, index_of
from mindrl.models.sharding import Sharding, full_sharding
from mindrl.resharding.plan import Topology
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.training.archon.sharding import archon_sharding
from mindrl.training.megatron.legality import legal_orders

SLOW_DRAWING = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
DENSE = ModelDescription(
    model_type="qwen2",
    num_hidden_layers=4,
    hidden_size=8,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=2,
    vocab_size=7,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    attention_bias=True,
)
MIXTURE = replace(
    DENSE,
    attention_bias=False,
    qk_norm=True,
    moe=MoeDescription(
        num_experts=6, num_experts_per_tok=2, intermediate_size=4, dense_layers=frozenset({0})
    ),
)
QUERY, KEY, GATE = (
    f"model.layers.0.{name}_proj.weight" for name in ("self_attn.q", "self_attn.k", "mlp.gate")
)


@st.composite
def layouts(draw: st.DrawFn, model: ModelDescription, world: int) -> TrainLayout:
    """Draw a layout of any order, and of any way through the stages."""
    layout = draw(training_layouts(model, world))
    layout = replace(layout, folds=layout.vpp == 2 and draw(st.booleans()))
    order = draw(st.sampled_from([*legal_orders(layout.dense_order, world)]))
    stages = [place.get("pp", 0) for place in order.coordinates]
    fitting = [
        each
        for each in legal_orders(layout.experts_order, world)
        if [place.get("pp", 0) for place in each.coordinates] == stages
    ]
    return layout.in_order(order, draw(st.sampled_from(fitting))) if fitting else layout


@st.composite
def sides(draw: st.DrawFn, worlds: list[int]) -> tuple[ModelDescription, TrainLayout, int]:
    """Draw a model, a layout, and how many ranks share the rows of a tensor."""
    model = draw(models(("qwen2", "qwen3", "qwen3_moe")))
    layout = draw(layouts(model, draw(st.sampled_from(worlds))))
    group = layout.dp * layout.cp
    shards = [size for size in range(1, group + 1) if group % size == 0]
    return model, layout, draw(st.sampled_from(shards))


def holders(model: ModelDescription, layout: TrainLayout, shards: int, tensor: str) -> int:
    """Count the ranks that are to hold each element of a tensor."""
    if ".mlp.experts." in tensor:
        return 1
    copies = layout.dp * layout.cp // shards
    if tensor == "model.embed_tokens.weight" and model.tie_word_embeddings:
        return copies * (2 if layout.pp * layout.vpp > 1 else 1)
    if "norm" in tensor or tensor.endswith(".mlp.gate.weight"):
        return copies * layout.tp
    if ".k_proj." in tensor or ".v_proj." in tensor:
        return copies * max(1, layout.tp // model.num_key_value_heads)
    return copies


@settings(max_examples=most_at_night(300), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(drawn=sides([1, 2, 3, 4, 6, 8, 12]))
def test_every_element_is_on_as_many_ranks_as_the_layout_says(
    drawn: tuple[ModelDescription, TrainLayout, int],
) -> None:
    model, layout, shards = drawn
    sharding = archon_sharding(model, layout, fsdp_size=shards)
    held = {name: np.zeros(shape, np.int64) for name, shape in shapes_of(model).items()}
    for shard in [shard for shards in sharding.held_by for shard in shards]:
        for local, entry in sharding.shards[shard].items():
            assert prod(entry.shape) > 0
            filled = np.zeros(entry.shape, np.int64)
            for placement in entry.placements:
                held[placement.tensor][index_of(placement.source)] += 1
                filled[index_of(placement.local)] += 1
            assert filled.max(initial=0) <= 1
            assert filled.min() == 1 or local in ("model.embed_tokens.weight", "lm_head.weight")
    for name, count in held.items():
        assert set(count.flat) == {holders(model, layout, shards, name)}, name


@settings(max_examples=most_at_night(100), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(drawn=sides([2, 4, 6]))
def test_shards_that_are_twins_have_equal_names_and_shapes(
    drawn: tuple[ModelDescription, TrainLayout, int],
) -> None:
    model, layout, shards = drawn
    sharding = archon_sharding(model, layout, fsdp_size=shards)
    for shard, twin in sharding.twins.items():
        shapes, others = (
            {name: entry.shape for name, entry in sharding.shards[each].items()}
            for each in (shard, twin)
        )
        assert shapes == others


@settings(max_examples=most_at_night(200), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(data=st.data())
def test_to_any_rollout_layout_a_rank_receives_what_it_needs_and_does_not_hold(
    data: st.DataObject,
) -> None:
    model, layout, shards = data.draw(sides([1, 2, 3, 4, 6, 8]))
    source = archon_sharding(model, layout, fsdp_size=shards)
    rollout = data.draw(rollout_layouts(model, layout.world_size))
    dtype = data.draw(st.sampled_from(["float32", "bfloat16"]))
    target = vllm_sharding(model, rollout, dtype=dtype)
    topology = Topology(ranks_per_node=data.draw(st.sampled_from([1, 2, 8])))
    bucket = data.draw(st.sampled_from([64, 1000, 1 << 20]))
    check(source, target, shapes_of(model), topology, bucket)


@settings(max_examples=most_at_night(60), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(drawn=sides([1, 2, 3, 4, 8]))
def test_whole_files_are_made_of_what_the_writer_lacks(
    drawn: tuple[ModelDescription, TrainLayout, int],
) -> None:
    model, layout, shards = drawn
    source = archon_sharding(model, layout, fsdp_size=shards)
    world = layout.world_size
    target = full_sharding(model, world_size=world, holders=[world - 1], dtype="bfloat16")
    check(source, target, shapes_of(model), Topology(ranks_per_node=2), 4096)


def rows(sharding: Sharding, name: str) -> list[Bounds | None]:
    """Return the rows of a logical tensor that each rank has, None where it has none."""
    tables = [sharding.table(rank) for rank in range(len(sharding.held_by))]
    return [table[name].placements[0].source[0] if name in table else None for table in tables]


def test_128_rows_over_3_ranks_are_43_43_and_42_and_4_rows_over_3_leave_one_without() -> None:
    sharding = archon_sharding(DENSE, TrainLayout(dp=3))
    assert rows(sharding, GATE) == [(0, 43), (43, 86), (86, 128)]
    assert rows(sharding, KEY) == [(0, 2), (2, 4), None]


def test_tensor_parallelism_cuts_first_and_sharding_cuts_what_is_left() -> None:
    sharding = archon_sharding(DENSE, TrainLayout(tp=2, dp=2))
    assert rows(sharding, GATE) == [(0, 32), (64, 96), (32, 64), (96, 128)]
    output = sharding.table(3)["model.layers.0.self_attn.o_proj.weight"].placements[0]
    assert output.source == ((4, 8), (4, 8))


def test_four_tensor_ranks_have_two_key_heads_of_two_rows_twice() -> None:
    sharding = archon_sharding(DENSE, TrainLayout(tp=4))
    assert rows(sharding, KEY) == [(0, 2), (0, 2), (2, 4), (2, 4)]
    assert rows(sharding, QUERY) == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_context_and_data_parallel_ranks_share_rows_and_half_of_them_hold_copies_if_asked() -> None:
    layout = TrainLayout(cp=2, dp=2)
    shared = archon_sharding(DENSE, layout)
    assert rows(shared, GATE) == [(0, 32), (32, 64), (64, 96), (96, 128)]
    copied = archon_sharding(DENSE, layout, fsdp_size=2)
    assert rows(copied, GATE) == [(0, 64), (64, 128), (0, 64), (64, 128)]


def test_the_vocabulary_of_7_is_padded_to_8_rows_and_a_shard_may_hold_padding_alone() -> None:
    table = [archon_sharding(DENSE, TrainLayout(tp=2, dp=4)).table(rank) for rank in range(8)]
    entries = [each["model.embed_tokens.weight"] for each in table]
    assert {entry.shape for entry in entries} == {(1, 8)}
    assert [len(entry.placements) for entry in entries] == [1, 1, 1, 1, 1, 1, 1, 0]


def test_a_v_gives_both_ends_of_the_model_to_the_first_stage_and_a_loop_does_not() -> None:
    for folds, layers, ends in ((True, {0, 3}, True), (False, {0, 2}, False)):
        layout = TrainLayout(pp=2, vpp=2, folds=folds)
        first = archon_sharding(DENSE, layout).table(0)
        found = {int(name.split(".")[2]) for name in first if name.startswith("model.layers.")}
        assert found == layers
        assert ("model.norm.weight" in first) is ends
        # The tied head is a copy: it lies in another chunk.
        assert ("lm_head.weight" in first) is ends
        assert "model.embed_tokens.weight" in first


def test_experts_are_dealt_whole_and_then_sharded_whole() -> None:
    layout = TrainLayout(tp=2, dp=4, ep=2, etp=2)
    sharding = archon_sharding(MIXTURE, layout)
    here = "model.layers.1.mlp.experts."
    # Two groups of three experts, over two ranks each: two and one.
    entries = [sharding.table(rank)[f"{here}gate_up"] for rank in range(8)]
    assert [entry.shape for entry in entries] == [(2, 4, 8)] * 4 + [(1, 4, 8)] * 4
    numbers = [[each.tensor.split(".")[5] for each in entry.placements] for entry in entries]
    assert numbers[0] == ["0", "0", "1", "1"]
    assert numbers[6] == ["5", "5"]
    # Of an expert tensor rank's two rows each, those of gate and then those of up.
    gate, up = entries[1].placements[:2]
    assert (gate.source[0], gate.local[1]) == ((2, 4), (0, 2))
    assert (up.source[0], up.local[1]) == ((2, 4), (2, 4))
    assert not any("layers.0.mlp.experts" in name for name in sharding.table(0))


def test_a_value_head_of_one_row_is_on_the_first_rank_alone() -> None:
    sharding = archon_sharding(DENSE, TrainLayout(dp=2), head="value")
    assert rows(sharding, "score.weight") == [(0, 1), None]
