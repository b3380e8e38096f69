"""What is spelled and read is the same, and what is read has one spelling."""

from dataclasses import replace
from math import prod

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindrl.allocation.meaning import (
    AllocationMode,
    ModelAllocation,
    layout_string,
    parse_backend,
    parse_mode,
    parse_training,
)
from mindrl.config.backends import BACKENDS
from mindrl.layouts.layout import RolloutLayout, TrainLayout

# A busy machine may take longer than the 200 ms that an example has by default.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SIZES = st.integers(1, 12)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z_0-9]{0,8}", fullmatch=True)


@st.composite
def allocations(draw: st.DrawFn, name: st.SearchStrategy[str | None]) -> ModelAllocation:
    backend = draw(st.sampled_from(sorted(BACKENDS)))
    rules = BACKENDS[backend]
    size = {letter: draw(SIZES) for letter in rules.letters}
    if not rules.trains:
        shared = [1] + [size["t"] * part for part in (1, size["d"])] * ("e" in size)
        rollout = RolloutLayout(
            dp=size["d"], tp=size["t"], pp=size["p"], ep=draw(st.sampled_from(shared))
        )
        return ModelAllocation(backend=backend, layout=rollout, name=draw(name))
    of_experts = (draw(SIZES), draw(SIZES)) if rules.ffn else (1, 1)
    # The copies of the dense part are enough for the experts to cover the same ranks.
    train = TrainLayout(
        dp=size["d"] * prod(of_experts),
        tp=size["t"],
        cp=size["c"],
        pp=size.get("p", 1),
        vpp=size.get("v", 1),
        ep=of_experts[0],
        etp=of_experts[1],
    )
    return ModelAllocation(backend=backend, layout=train, name=draw(name))


@st.composite
def modes(draw: st.DrawFn) -> AllocationMode:
    """Draw modes whose groups are one or two engines of equal size."""
    names = draw(st.lists(NAMES, min_size=2, max_size=8, unique=True))
    groups = []
    while names:
        first = draw(allocations(st.just(names.pop())))
        group = [first]
        if names and draw(st.booleans()):
            replicas = first.layout.dp
            layout = RolloutLayout(dp=replicas, tp=first.world_size // replicas)
            group.append(ModelAllocation(backend="vllm", layout=layout, name=names.pop()))
        groups.append(tuple(group))
    return AllocationMode(groups=tuple(groups))


@UNHURRIED
@given(allocations(st.none() | NAMES))
def test_an_allocation_that_is_spelled_and_read_is_the_same(allocation: ModelAllocation) -> None:
    read = parse_backend(str(allocation))
    assert read == allocation
    assert str(read) == str(allocation)
    assert read.world_size == allocation.world_size


@UNHURRIED
@given(allocations(st.none()).filter(lambda each: each.trains), SIZES)
def test_every_layout_that_is_printed_can_be_read_whatever_its_chunks_are(
    allocation: ModelAllocation, chunks: int
) -> None:
    layout, backend = allocation.layout, allocation.backend
    assert isinstance(layout, TrainLayout)
    read = parse_training(layout_string(replace(layout, vpp=chunks), backend))
    # Other engines than Megatron have them beside the string, or none.
    assert read == replace(layout, vpp=chunks if backend == "megatron" else 1)


@UNHURRIED
@given(modes())
def test_a_mode_that_is_spelled_and_read_is_the_same(mode: AllocationMode) -> None:
    read = parse_mode(str(mode))
    assert read == mode
    for each in mode:
        assert read.backends[each.role] == replace(each, name=None)


@UNHURRIED
@given(st.permutations(["d4", "p2", "t2", "c2", "e4", "v3"]))
def test_dimensions_may_stand_in_any_order_and_have_one_spelling(dimensions: list[str]) -> None:
    text = "megatron:" + "".join(dimensions)
    assert str(parse_backend(text)) == "megatron:d4p2t2c2e4v3"


def test_sizes_of_1_are_not_spelled_but_for_d() -> None:
    assert str(parse_backend("megatron:p1t1c1e1v1")) == "megatron:d1"
    assert str(parse_backend("sglang:t2p1d2")) == "sglang:d2t2"
    # An expert that is not cut has no list of its own.
    assert str(parse_backend("archon:(attn:t2d4|ffn:t1e4)")) == "archon:d4t2e4"
