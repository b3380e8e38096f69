"""Runs of elements as boxes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mindrl.models.flat_range import boxes_of_run
from mindrl.models.placement import index_of, volume

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


def test_a_run_from_the_middle_of_a_row_to_the_middle_of_another_is_three_boxes() -> None:
    assert list(boxes_of_run((4, 3), 2, 10)) == [
        (((0, 1), (2, 3)), 0),
        (((1, 3), (0, 3)), 1),
        (((3, 4), (0, 1)), 7),
    ]


def test_a_run_inside_a_row_and_a_whole_tensor_are_one_box_each() -> None:
    assert list(boxes_of_run((4, 3), 4, 5)) == [(((1, 2), (1, 2)), 0)]
    assert list(boxes_of_run((4, 3), 0, 12)) == [(((0, 4), (0, 3)), 0)]
    assert list(boxes_of_run((4,), 1, 3)) == [(((1, 3),), 0)]
    assert list(boxes_of_run((4, 3), 6, 6)) == []


@given(shape=SHAPES, ends=st.tuples(st.integers(0, 125), st.integers(0, 125)))
def test_the_boxes_hold_each_element_of_the_run_once_and_in_its_place(
    shape: tuple[int, ...], ends: tuple[int, int]
) -> None:
    elements = np.arange(int(np.prod(shape))).reshape(shape)
    start, stop = sorted(min(end, elements.size) for end in ends)
    found = np.full(stop - start, -1)
    for box, offset in boxes_of_run(shape, start, stop):
        found[offset : offset + volume(box)] = elements[index_of(box)].ravel()
    assert found.tolist() == list(range(start, stop))
    # A row's end, whole rows and a row's begin, of each dimension but the last.
    assert len(list(boxes_of_run(shape, start, stop))) <= 2 * len(shape) - 1
