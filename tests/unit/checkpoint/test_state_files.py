"""Model state in files: boxes are assembled from the slices of all writers."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from mindrl.checkpoint.state_files import NewSlice, StateReader, write_state
from mindrl.errors import CheckpointError

WHOLE = torch.arange(12.0).view(4, 3)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Rows 0 and 1 in one file, rows 2 and 3 without their last element in another."""
    first = [NewSlice("weight", "a", ((0, 2), (0, 3)), WHOLE[:2])]
    second = [
        NewSlice("weight", "a", ((2, 3), (0, 3)), WHOLE[2:3]),
        NewSlice("weight", "a", ((3, 4), (0, 2)), WHOLE[3:, :2]),
    ]
    found = [tmp_path / "actor-00000.safetensors", tmp_path / "actor-00001.safetensors"]
    for path, slices in zip(found, (first, second), strict=True):
        write_state(path, slices)
    return found


def test_a_box_is_put_together_from_the_slices_of_all_files(paths: list[Path]) -> None:
    with ExitStack() as stack:
        read = StateReader(paths, stack).read
        assert torch.equal(read("weight", "a", ((1, 3), (1, 3))), WHOLE[1:3, 1:])
        assert torch.equal(read("weight", "a", ((0, 4), (0, 2))), WHOLE[:, :2])


def test_what_is_in_no_file_is_an_error_that_counts_it(paths: list[Path]) -> None:
    with ExitStack() as stack:
        read = StateReader(paths, stack).read
        with pytest.raises(CheckpointError, match=r"weight a .*: no file has 1 of 3 elements"):
            read("weight", "a", ((3, 4), (0, 3)))
        with pytest.raises(CheckpointError, match=r"exp_avg a .*: no file has 1 of 1 elements"):
            read("exp_avg", "a", ((0, 1), (0, 1)))


def test_a_tensor_that_is_no_slice_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "actor-00000.safetensors"
    write_state(path, [NewSlice("weight", "a b", ((0, 4), (0, 3)), WHOLE)])
    with (
        ExitStack() as stack,
        pytest.raises(CheckpointError, match="'weight a b 0:4,0:3' is not the name"),
    ):
        StateReader([path], stack)
