"""Routes of sampled sequences in safetensors files: one per rank, each part in one of them.

The name of a part in a file has its key, its first position, and the key of the part before it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from mindrl.batch.route_keys import RoutePart
from mindrl.checkpoint.commits import WrittenFile, write_synced
from mindrl.checkpoint.export import bytes_of
from mindrl.checkpoint.files import header_bytes, open_file
from mindrl.errors import CheckpointError

PREFIX = "routes-"
_CODES = {torch.uint8: "U8", torch.int16: "I16"}
_NAME = re.compile(r"(?P<key>\d+) from (?P<first>\d+)( after (?P<before>\d+))?")


def write_routes(folder: Path, rank: int, parts: Mapping[int, RoutePart]) -> WrittenFile:
    """Write a rank's parts to a new file, one after another, and wait until it is on disk.

    Raises:
        OSError: The file cannot be written.
    """
    return write_synced(folder / f"{PREFIX}{rank:05}.safetensors", _contents(parts))


def read_routes(paths: Sequence[Path]) -> dict[int, RoutePart]:
    """Return the parts in files.

    Raises:
        CheckpointError: A file has a tensor that is no part.
        ModelError: A file cannot be read.
    """
    found = {}
    with ExitStack() as stack:
        files = [(path, stack.enter_context(open_file(path, "pt"))) for path in paths]
        for path, file, name in [(*each, name) for each in files for name in each[1].keys()]:  # noqa: SIM118
            if (named := _NAME.fullmatch(name)) is None:
                raise CheckpointError(f"{path}: {name!r} is not the name of a part of routes")
            before = named["before"]
            found[int(named["key"])] = RoutePart(
                routes_TLK=file.get_tensor(name),
                first=int(named["first"]),
                before=None if before is None else int(before),
            )
    return found


def _contents(parts: Mapping[int, RoutePart]) -> Iterator[bytes | memoryview]:
    header, stop = dict[str, object](), 0
    for key, part in parts.items():
        name = f"{key} from {part.first}"
        name += "" if part.before is None else f" after {part.before}"
        begin, stop = stop, stop + part.routes_TLK.nbytes
        header[name] = {
            "dtype": _CODES[part.routes_TLK.dtype],
            "shape": part.routes_TLK.shape,
            "data_offsets": [begin, stop],
        }
    yield header_bytes(header)
    for part in parts.values():
        yield bytes_of(part.routes_TLK)
