"""Routes in the files of a checkpoint are those that were kept."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mindrl.batch.route_keys import RoutePart
from mindrl.checkpoint.route_files import read_routes, write_routes
from mindrl.errors import CheckpointError

PARTS = {
    7: RoutePart(routes_TLK=torch.arange(24, dtype=torch.uint8).view(3, 4, 2)),
    (1 << 63) - 1: RoutePart(routes_TLK=torch.ones(2, 4, 2, dtype=torch.uint8), first=2, before=7),
}
WIDE = {5: RoutePart(routes_TLK=torch.full((1, 4, 2), 300, dtype=torch.int16))}


def test_parts_are_read_as_written_from_all_files(tmp_path: Path) -> None:
    written = [write_routes(tmp_path, rank, parts) for rank, parts in enumerate((PARTS, WIDE))]
    paths = [tmp_path / each.name for each in written]
    assert [each.name for each in paths] == [f"routes-0000{rank}.safetensors" for rank in range(2)]
    assert [each.stat().st_size for each in paths] == [each.nbytes for each in written]
    found, expected = read_routes(paths), PARTS | WIDE
    assert found.keys() == expected.keys()
    for key, part in expected.items():
        assert torch.equal(found[key].routes_TLK, part.routes_TLK)
        assert found[key].routes_TLK.dtype == part.routes_TLK.dtype
        assert (found[key].first, found[key].before) == (part.first, part.before)


def test_a_tensor_that_is_no_part_is_refused(tmp_path: Path) -> None:
    save_file({"7 from here": torch.zeros(1)}, tmp_path / "routes-00000.safetensors")
    with pytest.raises(CheckpointError, match="'7 from here' is not the name of a part of routes"):
        read_routes([tmp_path / "routes-00000.safetensors"])
