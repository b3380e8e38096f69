"""Who is where: the grids of both sides, replicas, stages, and even cuts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrl.layouts.layout import RolloutLayout, TrainLayout, even_bounds
from mindrl.layouts.rank_order import RankOrder


def test_eight_ranks_of_tensor_parallel_size_4_are_two_replicas_on_both_sides() -> None:
    for layout in (TrainLayout(tp=4, dp=2), RolloutLayout(tp=4, dp=2)):
        assert layout.world_size == 8
        assert layout.replicas == 2
        assert [layout.replica_of(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
        assert layout.leaders == (0, 4)


def test_megatron_numbers_tensor_ranks_then_context_then_data_then_stages() -> None:
    layout = TrainLayout(tp=2, cp=2, dp=2, pp=2, ep=4, etp=2)
    assert layout.dense_order.coordinates[0b1101] == {"tp": 1, "cp": 0, "dp": 1, "pp": 1}
    assert layout.experts_order.coordinates[0b1101] == {"etp": 1, "ep": 2, "dp": 0, "pp": 1}
    assert layout.expert_dp == 1
    # Results are known where the last stage is.
    assert layout.leaders == (8, 12)


def test_an_order_of_its_own_moves_the_replicas_and_their_leaders() -> None:
    order = RankOrder(digits=(("dp", 2), ("tp", 2), ("dp", 2)))
    layout = TrainLayout(tp=2, dp=4, order=order)
    assert [layout.replica_of(rank) for rank in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert layout.leaders == (0, 1, 4, 5)


def test_an_order_whose_digits_are_not_the_ranks_is_our_own_mistake() -> None:
    halved = TrainLayout(tp=2, dp=4, order=RankOrder(digits=(("tp", 2), ("dp", 2))))
    with pytest.raises(AssertionError):
        _ = halved.dense_order
    with pytest.raises(AssertionError):
        _ = TrainLayout(dp=4, ep=3).experts_order


def test_vllm_numbers_tensor_ranks_then_stages_then_replicas() -> None:
    layout = RolloutLayout(tp=2, pp=2, dp=2)
    places = [
        (layout.replica_of(rank), layout.stage_of(rank), layout.tensor_rank_of(rank))
        for rank in range(8)
    ]
    assert places == [(dp, pp, tp) for dp in (0, 1) for pp in (0, 1) for tp in (0, 1)]


def test_experts_are_shared_by_the_tensor_ranks_of_neighbouring_replicas_of_one_stage() -> None:
    layout = RolloutLayout(tp=2, pp=2, dp=2, ep=4)
    assert [layout.expert_rank_of(rank) for rank in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]
    within = RolloutLayout(tp=2, dp=4, ep=4)
    assert [within.expert_rank_of(rank) for rank in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(("tp", "dp", "ep"), [(4, 2, 2), (2, 2, 8), (2, 3, 4)])
def test_vllm_cannot_share_experts_by_part_of_a_replica_or_by_more_ranks_than_there_are(
    tp: int, dp: int, ep: int
) -> None:
    with pytest.raises(AssertionError):
        RolloutLayout(tp=tp, dp=dp, ep=ep)


def test_28_layers_on_2_stages_of_2_chunks_are_7_each_and_chunk_2_is_stage_0_again() -> None:
    layout = TrainLayout(pp=2, vpp=2)
    assert layout.chunks(28) == [range(7), range(7, 14), range(14, 21), range(21, 28)]


def test_a_loop_gives_every_stage_each_fourth_chunk_and_a_v_gives_the_first_both_ends() -> None:
    loop, fold = TrainLayout(pp=4, vpp=2, dp=2), TrainLayout(pp=4, vpp=2, dp=2, folds=True)
    assert [loop.chunks_of(stage) for stage in range(4)] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [fold.chunks_of(stage) for stage in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert [loop.stage_with(chunk) for chunk in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [fold.stage_with(chunk) for chunk in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert (loop.last_stage, fold.last_stage) == (3, 0)
    assert (loop.leaders, fold.leaders) == ((6, 7), (0, 1))


def test_a_v_has_two_chunks_of_each_stage() -> None:
    with pytest.raises(AssertionError):
        TrainLayout(pp=4, folds=True)


def test_chunks_may_be_given_by_their_layers() -> None:
    layout = TrainLayout(pp=2, layers_per_chunk=(3, 2))
    assert layout.chunks(5) == [range(3), range(3, 5)]


def test_vllm_gives_what_is_left_over_to_the_stages_before_the_last() -> None:
    assert [len(stage) for stage in RolloutLayout(pp=4).chunks(61)] == [15, 15, 16, 15]
    assert [len(stage) for stage in RolloutLayout(pp=4).chunks(63)] == [16, 16, 16, 15]
    assert [len(stage) for stage in RolloutLayout(pp=2).chunks(28)] == [14, 14]


@pytest.mark.parametrize(
    ("count", "parts", "bounds"),
    [
        (8, 2, [(0, 4), (4, 8)]),
        (7, 3, [(0, 2), (2, 4), (4, 7)]),
        (2, 3, [(0, 0), (0, 1), (1, 2)]),
        (0, 2, [(0, 0), (0, 0)]),
    ],
)
def test_even_bounds_of_known_counts(count: int, parts: int, bounds: list[tuple[int, int]]) -> None:
    assert even_bounds(count, parts) == bounds


@settings(deadline=None)
@given(count=st.integers(0, 1000), parts=st.integers(1, 64))
def test_even_bounds_cover_all_in_order_and_differ_by_one_at_most(count: int, parts: int) -> None:
    bounds = even_bounds(count, parts)
    assert [item for start, stop in bounds for item in range(start, stop)] == list(range(count))
    lengths = [stop - start for start, stop in bounds]
    assert len(lengths) == parts
    assert max(lengths) - min(lengths) <= 1
