"""The reshard plan: complete, minimal, within its bucket, for any pair of layouts."""

from collections import defaultdict
from dataclasses import replace
from itertools import count

import pytest
from geometry import (
    check,
    masks,
    models,
    rollout_layouts,
    shapes_of,
    shardings,
    training_layouts,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nightly import most_at_night

from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.placement import index_of
from mindrl.models.sharding import Sharding, elsewhere, held_in_full
from mindrl.resharding.plan import ReshardPlan, Topology, plan_reshard
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.training.megatron.sharding import megatron_sharding

SLOW_DRAWING = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
DTYPES = st.sampled_from(["float32", "bfloat16"])


@settings(max_examples=most_at_night(1200), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(data=st.data())
def test_any_model_goes_from_any_training_layout_to_any_rollout_layout(data: st.DataObject) -> None:
    model = data.draw(models())
    world = data.draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
    train = data.draw(training_layouts(model, world))
    rollout = data.draw(rollout_layouts(model, world))
    storage = data.draw(st.sampled_from(["sequential", "te_grouped", "grouped"]))
    source = megatron_sharding(model, train, dtype=data.draw(DTYPES), experts=storage)
    target = vllm_sharding(model, rollout, dtype=data.draw(DTYPES))
    topology = Topology(ranks_per_node=data.draw(st.sampled_from([1, 2, 8])))
    check(
        source, target, shapes_of(model), topology, data.draw(st.sampled_from([64, 1000, 1 << 20]))
    )


@settings(max_examples=most_at_night(300), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(data=st.data())
def test_the_two_sides_may_be_on_different_ranks(data: st.DataObject) -> None:
    model = data.draw(models())
    ranks = data.draw(st.sampled_from([(1, 1), (2, 1), (2, 4), (4, 2), (3, 4)]))
    world = sum(ranks)
    train = data.draw(training_layouts(model, ranks[0]))
    rollout = data.draw(rollout_layouts(model, ranks[1]))
    source = megatron_sharding(model, train, dtype="float32")
    target = vllm_sharding(model, rollout, dtype="bfloat16")
    plan = check(
        elsewhere(source, first_rank=0, world_size=world),
        elsewhere(target, first_rank=ranks[0], world_size=world),
        shapes_of(model),
        Topology(ranks_per_node=2),
        4096,
    )
    assert plan.copied.sum() == 0


@settings(max_examples=most_at_night(700), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(data=st.data())
def test_sides_of_any_geometry(data: st.DataObject) -> None:
    sizes = st.lists(st.integers(1, 7), min_size=1, max_size=2).map(tuple)
    drawn = data.draw(st.lists(sizes, min_size=1, max_size=4))
    shapes = {f"tensor {index}": shape for index, shape in enumerate(drawn)}
    world = data.draw(st.integers(1, 5))
    source, target = data.draw(shardings(shapes, world)), data.draw(shardings(shapes, world))
    topology = Topology(ranks_per_node=data.draw(st.integers(1, 5)))
    check(source, target, shapes, topology, data.draw(st.sampled_from([16, 64, 4096])))


@st.composite
def small_plans(draw: st.DrawFn) -> tuple[ReshardPlan, Sharding, Sharding]:
    """Draw a plan of four ranks on two nodes, whose sides no model has, and both sides."""
    shapes = {"tensor 0": (6, 3), "tensor 1": (5,), "tensor 2": (4, 4)}
    source, target = draw(shardings(shapes, 4)), draw(shardings(shapes, 4))
    bucket = draw(st.sampled_from([64, 256]))
    plan = plan_reshard(source, target, Topology(ranks_per_node=2), bucket_bytes=bucket)
    return plan, source, target


@settings(max_examples=most_at_night(300), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(drawn=small_plans())
def test_bundles_hold_each_slice_once_and_fit_their_part_of_a_round(
    drawn: tuple[ReshardPlan, Sharding, Sharding],
) -> None:
    slices, most = drawn[0].slices, drawn[0].routes.per_round
    bundles = slices.bundles
    assert sorted(at for each in bundles.members for at in each) == [*range(len(slices))]
    for way, nbytes, members in zip(bundles.way, bundles.nbytes, bundles.members, strict=True):
        sizes = [slices[at].wire_bytes for at in members]
        assert {int(slices.way[at]) for at in members} == {int(way)}
        assert nbytes == sum(sizes)
        limit = most // 8 if max(sizes) <= most // 8 else most
        assert nbytes <= limit or len(members) == 1


@settings(max_examples=most_at_night(300), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(drawn=small_plans())
def test_rounds_are_those_that_are_chosen_one_by_one(
    drawn: tuple[ReshardPlan, Sharding, Sharding],
) -> None:
    """The first round with room both ways: bundles of half a round first, small ones last."""
    routes, most = drawn[0].routes, drawn[0].routes.per_round
    room: defaultdict[tuple[str, int, int], int] = defaultdict(lambda: most)
    sizes = routes.nbytes.tolist()
    expected = dict[int, int]()
    for low, high in ((most // 2, most), (most // 8, most // 2), (0, most // 8)):
        reached = [0] * 4
        for index in (at for at, size in enumerate(sizes) if low < size <= high):
            sender, reader = int(routes.source[index]), int(routes.target[index])
            expected[index] = reached[reader]
            if sender == reader:
                continue
            ways, size = (("out", sender), ("in", reader)), sizes[index]
            at = next(at for at in count() if all(room[*way, at] >= size for way in ways))
            for way in ways:
                room[*way, at] -= size
            expected[index], reached[reader] = at, max(at, reached[reader])
    assert routes.round.tolist() == [expected[index] for index in range(len(sizes))]


@settings(max_examples=most_at_night(300), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(drawn=small_plans())
def test_a_rank_reads_from_itself_else_from_its_node_and_no_sender_is_much_busier(
    drawn: tuple[ReshardPlan, Sharding, Sharding],
) -> None:
    """Than if each slice came from the holder that has sent least."""
    plan, source, target = drawn
    nodes, sent = [0, 0, 1, 1], [0] * 4
    routes = zip(*(each.tolist() for each in (plan.routes.source, plan.routes.target)), strict=True)
    chosen = defaultdict(set)
    for at, (sender, reader) in zip(plan.routes.bundle.tolist(), routes, strict=True):
        for index in plan.slices.bundles.members[at]:
            chosen[index, reader].add(sender)
    for index, part in enumerate(plan.slices):
        there = [at for at in range(4) if {*source.held_by[at]} & {*part.source_shards}]
        for reader, wanted in enumerate(target.held_by):
            if part.target_shard not in wanted:
                assert (index, reader) not in chosen
                continue
            near = [rank for rank in there if nodes[rank] == nodes[reader]] or there
            (sender,) = chosen[index, reader]
            assert sender == reader if reader in there else sender in near
            if reader not in there:
                sent[min(near, key=sent.__getitem__)] += part.wire_bytes
    widest = max(plan.slices.bundles.nbytes.tolist(), default=0)
    assert max(plan.sent) <= 1.02 * max(sent) + widest


@settings(max_examples=most_at_night(100), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(data=st.data())
def test_a_rank_reads_a_way_from_one_sender_unless_that_would_be_the_busiest(
    data: st.DataObject,
) -> None:
    """Whole layers of equal size: one sender for each pipeline stage that a rank reads."""
    replicas = data.draw(st.sampled_from([2, 4]))
    model = data.draw(models(("qwen2",)))
    layout = TrainLayout(tp=2, dp=replicas)
    source = megatron_sharding(model, layout, dtype="bfloat16")
    target = vllm_sharding(model, RolloutLayout(dp=2 * replicas), dtype="bfloat16")
    plan = plan_reshard(source, target, Topology(ranks_per_node=1), bucket_bytes=4096)
    pairs = {*zip(plan.routes.source.tolist(), plan.routes.target.tolist(), strict=True)}
    # Every rank lacks the other half of each tensor, which as many ranks hold as need it.
    remote = [pair for pair in pairs if pair[0] != pair[1]]
    assert len(remote) == 2 * replicas
    assert len({tuple(sorted(pair)) for pair in remote}) == replicas


def test_two_holders_share_the_third_of_their_readers() -> None:
    """A reader more for one of them would be a third more for the busiest."""
    shapes = {f"tensor {index}": (100, 4) for index in range(8)}
    source = held_in_full(shapes, world_size=5, holders=[0, 1], dtype="float32")
    target = held_in_full(shapes, world_size=5, holders=[2, 3, 4], dtype="float32")
    plan = check(source, target, shapes, Topology(ranks_per_node=1), 4 * 800)
    whole = 8 * 100 * 4 * 4
    assert plan.sent[:2].tolist() == pytest.approx([1.5 * whole] * 2, rel=0.05)
    # Each of two readers has one sender.
    assert sorted((plan.pair_bytes[:2] > 0).sum(axis=0)[2:].tolist()) == [1, 1, 2]


@settings(max_examples=most_at_night(100), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(data=st.data())
def test_equal_sides_move_nothing(data: st.DataObject) -> None:
    model = data.draw(models())
    layout = data.draw(training_layouts(model, data.draw(st.sampled_from([1, 2, 4, 8]))))
    sharding = megatron_sharding(model, layout, dtype="bfloat16")
    plan = check(sharding, sharding, shapes_of(model), Topology(ranks_per_node=8), 4096)
    assert plan.received.sum() == 0


@settings(max_examples=most_at_night(100), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(data=st.data())
def test_a_slice_comes_from_its_own_node_where_that_has_it(data: st.DataObject) -> None:
    model = data.draw(models())
    source = megatron_sharding(model, data.draw(training_layouts(model, 8)), dtype="float32")
    target = vllm_sharding(model, data.draw(rollout_layouts(model, 8)), dtype="float32")
    topology = Topology(ranks_per_node=4)
    plan = plan_reshard(source, target, topology, bucket_bytes=1 << 20)
    held = [masks(source, rank, shapes_of(model)) for rank in range(8)]
    routes, nodes = plan.routes, topology.nodes(8)
    for at, sender, receiver in zip(routes.bundle, routes.source, routes.target, strict=True):
        part, node = plan.slices.bundles.members[at][0], nodes[receiver]
        mates = [mate for mate in range(8) if nodes[mate] == node]
        tensor, index = plan.slices[part].tensor, index_of(plan.slices[part].box)
        holders = [mate for mate in mates if held[mate][tensor][index].all()]
        assert nodes[sender] == node or not holders


@settings(max_examples=50, deadline=None, suppress_health_check=SLOW_DRAWING)
@given(data=st.data())
def test_plans_that_differ_in_a_single_route_or_in_its_round_have_other_digests(
    data: st.DataObject,
) -> None:
    """Ranks compare digests before they move anything: two plans would wait for each other."""
    model = data.draw(models())
    source = megatron_sharding(model, data.draw(training_layouts(model, 4)), dtype="float32")
    target = vllm_sharding(model, data.draw(rollout_layouts(model, 4)), dtype="float32")
    plan, same = (
        plan_reshard(source, target, Topology(ranks_per_node=4), bucket_bytes=1 << 20)
        for _ in range(2)
    )
    assert plan.digest == same.digest
    for name in ("bundle", "source", "target"):
        changed = getattr(plan.routes, name).copy()
        changed[data.draw(st.integers(0, len(changed) - 1))] += 1
        assert replace(plan, routes=replace(plan.routes, **{name: changed})).digest != plan.digest
    in_one_round = replace(plan.routes, per_round=1 << 40)
    each_alone = replace(plan.routes, per_round=1)
    different = in_one_round.round.tolist() != each_alone.round.tolist()
    digests = {replace(plan, routes=routes).digest for routes in (in_one_round, each_alone)}
    assert len(digests) == 1 + different
