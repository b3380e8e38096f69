"""Features that a frozen tower has made: copies on the host, within a limit."""

import torch

from mindrl.training.vision.kept_features import Features, KeptFeatures


def made(fill: float) -> Features:
    """Return two outputs of four features, 128 bytes, cut from larger ones."""
    outputs = tuple(torch.full((9, 4), fill)[:4] for _ in range(2))
    return Features(grids_13=torch.tensor([[1, 4, 4]]), outputs=outputs)


def test_those_unused_for_longest_leave_and_memory_is_counted() -> None:
    kept, given = KeptFeatures(300), made(1.0)
    kept.keep(1, given)
    kept.keep(2, made(2.0))
    assert kept.of(1) is not None
    kept.keep(3, made(3.0))
    assert [number for number in (1, 2, 3) if kept.of(number)] == [1, 3]
    found = kept.of(1)
    assert found is not None
    # Not a part of the tower's output, which would stay whole.
    assert all(each.untyped_storage().nbytes() == 64 for each in found.outputs)
    given.outputs[0].fill_(7.0)
    assert float(found.outputs[0].sum()) == 16.0
    kept.clear()
    assert kept.of(1) is None
    for number in range(4):
        kept.keep(number, made(0.0))
    assert [number for number in range(4) if kept.of(number)] == [2, 3]


def test_features_larger_than_the_limit_are_not_kept() -> None:
    kept = KeptFeatures(100)
    kept.keep(1, made(1.0))
    assert kept.of(1) is None
