"""Mixed-radix numberings of ranks."""

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from mindrl.layouts.rank_order import RankOrder

DIGITS = st.lists(
    st.tuples(st.sampled_from(["tp", "dp", "pp"]), st.integers(1, 4)), min_size=1, max_size=5
)


def test_digits_of_one_dimension_may_stand_apart() -> None:
    order = RankOrder(digits=(("dp", 2), ("tp", 2), ("dp", 2)))
    assert order.world_size == 8
    assert [at["tp"] for at in order.coordinates] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [at["dp"] for at in order.coordinates] == [0, 1, 0, 1, 2, 3, 2, 3]


def test_groups_are_the_ranks_that_differ_in_the_named_dimensions_only() -> None:
    order = RankOrder(digits=(("dp", 2), ("tp", 2), ("dp", 2)))
    assert order.groups(("tp",)) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert order.groups(("dp",)) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert order.groups(("tp", "dp")) == [list(range(8))]


@given(DIGITS)
def test_each_place_has_one_rank_and_coordinates_rise_inside_every_group(
    digits: list[tuple[str, int]],
) -> None:
    order = RankOrder(digits=tuple(digits))
    places = {tuple(sorted(at.items())) for at in order.coordinates}
    assert len(places) == order.world_size == prod(radix for _, radix in digits)
    for dimension in {name for name, _ in digits}:
        for group in order.groups((dimension,)):
            assert [order.coordinates[rank][dimension] for rank in group] == list(range(len(group)))
