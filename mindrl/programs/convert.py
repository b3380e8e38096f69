"""Convert weights between layouts: `mindrl convert-ckpt ...`."""

import argparse
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from mindrl.allocation.meaning import layout_string, parse_training
from mindrl.checkpoint.files import check_shapes, head_in, open_tensors, shapes_in
from mindrl.checkpoint.kept_tensors import kept_names
from mindrl.checkpoint.rank_files import LAYOUT_FILE, open_rank_files, read_layout
from mindrl.checkpoint.stored_names import FLAT
from mindrl.config.backends import training_backend_of
from mindrl.errors import ConfigError, ModelError, OutputError
from mindrl.launch.interrupts import signals_as_errors
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import DType, Head, logical_shapes
from mindrl.models.description import ModelDescription, read_description
from mindrl.models.sharding import Sharding, full_sharding
from mindrl.observability.terminal import say
from mindrl.observability.units import traffic_text
from mindrl.programs.arguments import (
    MOST_RANKS,
    Program,
    add_layers_per_chunk,
    gib,
    written_keys,
)
from mindrl.programs.exits import FAILED, report
from mindrl.training.planning import Storage, planning_of

if TYPE_CHECKING:
    from mindrl.checkpoint.conversion import Conversion

_STORED: Mapping[str, DType] = {"F32": "float32", "BF16": "bfloat16"}
"""mindrl dtypes by their names in safetensors."""
_EXAMPLE = """\
example: to one file per rank and back to a Hugging Face folder
  mindrl convert-ckpt --from models/Qwen2.5-7B --to cut/t4p2 --layout megatron:t4p2
  mindrl convert-ckpt --from cut/t4p2 --to models/again

The source is a Hugging Face folder or a folder of rank files. For layouts see
mindrl plan reshard --help.
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--from", required=True, dest="source", metavar="DIR", help="folder of the weights")
    add("--to", required=True, dest="target", metavar="NEWDIR", help="new folder, or an empty one")
    layout = "training layout of the target; without it the target is a Hugging Face folder"
    add("--layout", metavar="LAYOUT", help=layout)
    add_layers_per_chunk(parser, "--layout")
    add("--dtype", choices=get_args(DType), help="type of the target (default: the source's)")
    most = "maximum GiB per file of a Hugging Face folder (default: 5)"
    add("--shard-gib", type=gib, dest="shard_bytes", metavar="N", help=most)


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Properties of the source weights."""

    sharding: Sharding | None
    """Sharding of the rank files; None for a Hugging Face folder."""
    dtype: DType | None
    """None for a type that mindrl does not train in."""
    head: Head = "vocabulary"
    left_out: tuple[str, ...] = ()
    """Tensors that the model does not use."""


@signals_as_errors()
def _convert(options: argparse.Namespace) -> int:
    layout = _target_layout(options)
    model = read_description(options.source)
    backend = training_backend_of(options.layout or "")
    engine = planning_of(backend)
    if layout and (findings := [*engine.findings(model, layout, written_keys("--layout"))]):
        return report(map(str, findings), FAILED)
    source = _read_source(options.source, model)
    dtype = options.dtype or source.dtype
    if dtype is None:
        known = " or ".join(get_args(DType))
        raise ConfigError(f"--from {options.source} has an unsupported type; add --dtype {known}")
    target = _new_target(options.target)

    # Imported late: --help and errors need no torch.
    from mindrl.checkpoint.conversion import Conversion  # noqa: PLC0415
    from mindrl.checkpoint.export import SHARD_BYTES  # noqa: PLC0415

    conversion = Conversion(
        source=options.source,
        source_sharding=source.sharding,
        target=target,
        target_sharding=full_sharding(
            model, world_size=1, holders=[0], dtype=dtype, head=source.head
        )
        if layout is None
        else engine.sharding(model, layout, Storage(dtype=dtype, head=source.head)),
        layout=layout,
        backend=backend,
        shard_bytes=options.shard_bytes or SHARD_BYTES,
    )
    _check_space(target, conversion.total_bytes)
    _run(conversion)
    if source.left_out:
        say(
            f"skipped {len(source.left_out)} tensors that config.json does not require, the first "
            f"is {source.left_out[0]}",
            to_stderr=True,
        )
    return 0


def _target_layout(options: argparse.Namespace) -> TrainLayout | None:
    if options.layout is None:
        if options.layers_per_chunk:
            raise ConfigError("--layers-per-chunk needs --layout; add it or remove the option")
        return None
    if options.shard_bytes is not None:
        raise ConfigError("--shard-gib is for a Hugging Face folder; remove it or --layout")
    layout = parse_training(options.layout)
    if layout.world_size > MOST_RANKS:
        ranks = f"{layout.world_size} ranks; the maximum is {MOST_RANKS}"
        raise ConfigError(f"--layout {options.layout}: {ranks}")
    return replace(layout, layers_per_chunk=options.layers_per_chunk)


def _read_source(folder: str, model: ModelDescription) -> _Source:
    """Read the headers of all weight files.

    Raises:
        ModelError: A file is missing, unreadable, truncated or does not match config.json.
    """
    path = Path(folder) / LAYOUT_FILE
    with ExitStack() as stack:
        if path.exists():
            cut = read_layout(folder)
            engine = planning_of(cut.backend)
            for finding in engine.findings(model, cut.layout, written_keys(str(path))):
                raise ModelError(str(finding))
            storage = Storage(dtype=cut.dtype, head=cut.head)
            sharding = engine.sharding(model, cut.layout, storage)
            open_rank_files(folder, sharding, stack, framework="np")
            return _Source(sharding=sharding, dtype=cut.dtype, head=cut.head)
        files = open_tensors(folder, stack, framework="np")
        found, head = shapes_in(files), head_in(files, model)
        wanted = logical_shapes(model, head=head)
        check_shapes(folder, found, wanted)
        first = next(iter(wanted))
        stored = str(files[first].get_slice(first).get_dtype())
        others = found.keys() - wanted.keys()
        left_out = tuple(sorted(others - kept_names(FLAT, others, wanted)))
        dtype = _STORED.get(stored)
        return _Source(sharding=None, dtype=dtype, head=head, left_out=left_out)


def _new_target(text: str) -> Path:
    target = Path(text).absolute()
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise OutputError(f"--to {text} exists and is not an empty folder; name a new one")
    except OSError as error:
        raise OutputError(f"--to {text} cannot be read: {error}") from error
    return target


def _check_space(target: Path, needed: int) -> None:
    parent = next(path for path in target.parents if path.is_dir())
    free = shutil.disk_usage(parent).free
    if needed > free:
        there = f"its disk has {traffic_text(free)} free"
        raise OutputError(f"--to {target} needs {traffic_text(needed)}; {there}")


def _run(conversion: "Conversion") -> None:
    """Convert, with a progress bar on a terminal, and print what was written."""
    from mindrl.checkpoint.conversion import convert as write  # noqa: PLC0415

    start, total, console = time.perf_counter(), conversion.total_bytes, Console(stderr=True)
    columns = (TextColumn("converting"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("converting", total=total)
        write(conversion, lambda written: progress.advance(task, written))
    seconds = time.perf_counter() - start
    files = len(list(conversion.target.glob("*.safetensors")))
    layout, backend = conversion.layout, conversion.backend
    kind = f"{layout_string(layout, backend)}, " if layout else ""
    say(
        f"{conversion.target}: {kind}{conversion.target_sharding.dtype}, {files} files, "
        f"{traffic_text(total)}, {seconds:.1f} s"
    )


PROGRAM = Program(
    about="Convert weights between a Hugging Face folder and the files of a training layout, "
    "one tensor at a time, without a cluster.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_convert,
    bad_input=(ModelError,),
)
