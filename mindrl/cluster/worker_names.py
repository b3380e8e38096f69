"""Names of workers in messages: with rank, process and node, or with their stages of the start."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from mindrl.cluster.worker_process import Identity

_MOST_NAMED = 8
"""Maximum number of workers listed in a message."""


def worker_names(ranks: Sequence[int], identities: Sequence[Identity], name: str = "worker") -> str:
    """Return names of workers with rank, process and node; only with rank during the start."""
    names = []
    for rank in ranks[:_MOST_NAMED]:
        found = identities[rank] if identities else None
        where = f", process {found.process.pid} on {found.node}" if found else ""
        names.append(f"{name}-{rank} (rank {rank}{where})")
    if len(ranks) > _MOST_NAMED:
        names.append(f"{len(ranks) - _MOST_NAMED} more")
    return ", ".join(names)


def stages_now(stages: Mapping[int, str], name: str) -> str:
    """Return the stages of workers by rank: `worker-0 starts the engine, ...`; others wait."""
    said = defaultdict(list)
    for rank, stage in sorted(stages.items()):
        said[stage or "waits"].append(f"{name}-{rank}")
    return ", ".join(f"{_few(who)} {stage}" for stage, who in said.items())


def start_lines(seconds: Sequence[Mapping[str, float]], name: str) -> Iterator[str]:
    """Yield each worker's durations by stage, or only the slowest of many workers."""
    if len(seconds) > _MOST_NAMED:
        slowest = {stage: max(each.get(stage, 0.0) for each in seconds) for stage in seconds[0]}
        yield f"slowest of {len(seconds)} {name}s in each stage: {_seconds(slowest)}"
        return
    for rank, each in enumerate(seconds):
        yield f"{name}-{rank}: {_seconds(each)}"


def _seconds(stages: Mapping[str, float]) -> str:
    return ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in stages.items())


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return " ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
