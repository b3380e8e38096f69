"""What the tests of exports call in forked ranks."""

import resource
import signal
from pathlib import Path

import torch.distributed as dist
from reshard_messages import SHARD_BYTES, Way
from reshard_probe import _case
from training_probe import of_any_engine

from mindrl.errors import OutputError
from mindrl.resharding.plan import Topology
from mindrl.workers.weight_export import WeightExport


def killed(way: Way, folder: str) -> None:
    """Kill the last rank while it writes."""
    exported(way, folder, dist.get_world_size() - 1, dies=True)


def exported_from_two_nodes(way: Way, folder: str) -> tuple[list[str], str]:
    """Export where ranks 0 and 1 share a disk."""
    return exported(way, folder, elsewhere=(2, 3))


def exported(
    way: Way,
    folder: str,
    full_rank: int | None = None,
    *,
    dies: bool = False,
    elsewhere: tuple[int, ...] = (),
) -> tuple[list[str], str]:
    """Export a model; return the files that this rank owns, and the error.

    Ranks `elsewhere` do not share the folder's disk.

    The disk of `full_rank` takes 100,000 bytes of a file; it gets an error then, or is killed.
    """
    model = of_any_engine(_case(way))
    topology = Topology(ranks_per_node=dist.get_world_size())
    export = WeightExport(
        model,
        "float32",
        topology,
        bucket_bytes=way.bucket_bytes,
        timeout_seconds=5,
        name="export",
        shard_bytes=SHARD_BYTES,
    )
    if dist.get_rank() == full_rank:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if dies else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    target, problem = Path(folder), ""
    if dist.get_rank() in elsewhere:
        target = target.parent / "elsewhere" / target.name
    try:
        export.write(target, {"step": 3})
    except OutputError as error:
        problem = str(error)
    assert export.route is not None
    return [*export.route.target.held_by[dist.get_rank()]], problem
