"""The reshard plan: complete, minimal, within its bucket, for any pair of layouts."""

from collections import defaultdict
from dataclasses import replace
from itertools import count

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

from mindrl.models.placement import index_of
from mindrl.models.sharding import elsewhere
from mindrl.resharding.plan import Topology, plan_reshard
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


@settings(max_examples=most_at_night(300), deadline=None, suppress_health_check=SLOW_DRAWING)
@given(data=st.data())
def test_senders_and_rounds_are_those_that_are_chosen_one_by_one(data: st.DataObject) -> None:
    """Of those that are near the one that has sent least; the first round with room both ways."""
    shapes, world = {"tensor 0": (6, 3), "tensor 1": (5,), "tensor 2": (4, 4)}, 4
    source, target = data.draw(shardings(shapes, world)), data.draw(shardings(shapes, world))
    topology = Topology(ranks_per_node=2)
    plan = plan_reshard(
        source, target, topology, bucket_bytes=data.draw(st.sampled_from([64, 256]))
    )
    nodes, sent = topology.nodes(world).tolist(), [0] * world
    room: defaultdict[tuple[str, int, int], int] = defaultdict(lambda: plan.routes.per_round)
    reached, expected = [0] * world, []
    asked = [
        (index, part, reader)
        for index, part in enumerate(plan.slices)
        for reader, wanted in enumerate(target.held_by)
        if part.target_shard in wanted
    ]
    for index, part, reader in asked:
        there = [at for at in range(world) if {*source.held_by[at]} & {*part.source_shards}]
        near = [rank for rank in there if nodes[rank] == nodes[reader]] or there
        sender = reader if reader in there else min(near, key=sent.__getitem__)
        at, size = reached[reader], part.wire_bytes
        if sender != reader:
            sent[sender] += size
            ways = ("out", sender), ("in", reader)
            at = next(at for at in count() if all(room[(*way, at)] >= size for way in ways))
            for way in ways:
                room[*way, at] -= size
            reached[reader] = max(at, reached[reader])
        expected.append((index, sender, reader, at))
    routes = plan.routes
    columns = (routes.slice, routes.source, routes.target, routes.round)
    assert list(zip(*(each.tolist() for each in columns), strict=True)) == expected


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
    for part, sender, receiver in zip(routes.slice, routes.source, routes.target, strict=True):
        node = nodes[receiver]
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
    for name in ("slice", "source", "target"):
        changed = getattr(plan.routes, name).copy()
        changed[data.draw(st.integers(0, len(changed) - 1))] += 1
        assert replace(plan, routes=replace(plan.routes, **{name: changed})).digest != plan.digest
    in_one_round = replace(plan.routes, per_round=1 << 40)
    each_alone = replace(plan.routes, per_round=1)
    different = in_one_round.round.tolist() != each_alone.round.tolist()
    digests = {replace(plan, routes=routes).digest for routes in (in_one_round, each_alone)}
    assert len(digests) == 1 + different
