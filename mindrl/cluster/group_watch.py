"""Detect hung workers from observations on all nodes during a call."""

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

import psutil
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from mindrl.cluster.node_watch import END_SECONDS, NodeWatch, ProcessKey, Sight
from mindrl.cluster.ray_calls import RayCalls
from mindrl.cluster.worker_process import Identity
from mindrl.errors import ClusterError, WorkerDiedError

_ANSWER_SECONDS = 2 * END_SECONDS + 1.0
"""Another node waits for its workers, kills the remaining ones, and waits for them."""


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Workers without progress."""

    ranks: Sequence[int]
    seen: str
    """Observation, appended to their names in messages."""


class GroupWatch:
    """All workers of a group, observed directly on this node, by a process on each other node.

    Ray restarts such a process if it dies.
    """

    def __init__(
        self,
        identities: Sequence[Identity],
        timeout_seconds: int,
        start_seconds: float,
        calls: RayCalls,
    ) -> None:
        """Observe each worker once; wait up to `start_seconds` for the other nodes.

        Raises:
            ClusterError: Another node cannot be observed.
        """
        self.timeout_seconds, self.calls = timeout_seconds, calls
        self.known: set[int] = set()
        """Ranks that have been seen."""
        self.lock = Lock()
        self.interval_seconds = min(1.0, timeout_seconds / 5)
        nodes: defaultdict[str, dict[int, ProcessKey]] = defaultdict(dict)
        for rank, identity in enumerate(identities):
            nodes[identity.node_id][rank] = identity.process
        here = nodes.pop(ray.get_runtime_context().get_node_id(), {})
        self.here = NodeWatch(here)
        self.others = [_OtherNode(node, keys, calls) for node, keys in nodes.items()]
        pending = [each.pending for each in self.others]
        try:
            calls.within(start_seconds, ray.get, pending, timeout=start_seconds)
        except RayError as error:
            raise ClusterError(f"cannot watch the workers of other nodes: {error}") from error

    def look(self) -> dict[int, Sight]:
        """Return each worker's last observation."""
        with self.lock:
            seen = self.here.look()
            for node in self.others:
                seen |= node.look()
            self.known |= seen.keys()
        return seen

    def gone(self) -> list[int]:
        """Return the ranks of processes that have ended since they were seen; thread-safe."""
        seen = self.look()
        return sorted(self.known - seen.keys())

    def out_of_memory(self, rank: int) -> str:
        """Return whether the kernel has killed processes for lack of memory on a rank's node."""
        for node in self.others:
            if rank in node.ranks:
                return node.out_of_memory()
        return self.here.out_of_memory()

    def dump_stacks(self) -> None:
        """Let every worker write its Python stacks to its log."""
        self._everywhere("dump_stacks")

    def end(self) -> None:
        """Make sure that all workers have ended, as requested; then stop watching."""
        self._everywhere("end")
        with suppress(WorkerDiedError):
            for node in self.others:
                self.calls.within(_ANSWER_SECONDS, ray.kill, node.actor)

    def _everywhere(self, method: str) -> None:
        pending: list[Any] = []
        with suppress(WorkerDiedError):
            pending += [self.calls(getattr(node.actor, method).remote) for node in self.others]
        getattr(self.here, method)()
        with suppress(WorkerDiedError):
            if pending:
                limit, count = 2 * _ANSWER_SECONDS, len(pending)
                self.calls.within(limit, ray.wait, pending, num_returns=count, timeout=limit / 2)


class _OtherNode:
    """Observer on another node; its answers are never waited for."""

    def __init__(self, node_id: str, keys: Mapping[int, ProcessKey], calls: RayCalls) -> None:
        there = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": there}
        self.calls, self.ranks = calls, keys.keys()
        self.actor = calls(ray.remote(NodeWatch).options(**options).remote, dict(keys))
        self.pending = calls(self.actor.look.remote)
        self.seen: dict[int, Sight] = {}

    def out_of_memory(self) -> str:
        """Return the node's count of killed processes; empty if it does not answer."""
        with suppress(RayError, WorkerDiedError):
            pending = self.calls(self.actor.out_of_memory.remote)
            count: str = self.calls(ray.get, pending, timeout=_ANSWER_SECONDS)
            return count
        return ""

    def look(self) -> dict[int, Sight]:
        """Return the last answer: workers of a silent node appear to make no progress."""
        if self.calls(ray.wait, [self.pending], timeout=0)[0]:
            done, self.pending = self.pending, self.calls(self.actor.look.remote)
            with suppress(RayError):
                self.seen = self.calls(ray.get, done)
        return self.seen


class Vigil:
    """Time without progress of each worker during one call.

    The time between two observations counts, but at most twice the polling interval: time in which
    this process or the machine was itself stopped does not count.
    """

    def __init__(self, watch: GroupWatch, *, silence_counts: bool) -> None:
        """Start at 0. With `silence_counts=False` only a stopped process counts as hung."""
        self.watch, self.interval_seconds = watch, watch.interval_seconds
        self.silence_counts = silence_counts
        self.seen: dict[int, Sight] = {}
        self.silent: defaultdict[int, float] = defaultdict(float)
        self.stopped: defaultdict[int, float] = defaultdict(float)
        self.looked = time.monotonic()

    def is_due(self) -> bool:
        """Return whether the polling interval has passed since the last observation."""
        return time.monotonic() - self.looked >= self.interval_seconds

    def look(self, pending: Collection[int]) -> Hang | None:
        """Observe, and return which of the pending workers hang."""
        now = time.monotonic()
        passed = min(now - self.looked, 2 * self.interval_seconds)
        self.looked, before, self.seen = now, self.seen, self.watch.look()
        for rank, sight in self.seen.items():
            moved = rank not in before or before[rank].count.ticks != sight.count.ticks
            self.silent[rank] = 0.0 if moved else self.silent[rank] + passed
            is_stopped = sight.status == psutil.STATUS_STOPPED
            self.stopped[rank] = self.stopped[rank] + passed if is_stopped else 0.0
        return self._judge([rank for rank in pending if rank in self.seen])

    def most_done(self) -> int:
        """Return the maximum of the observed ticks of a worker during the call."""
        return max((sight.count.work for sight in self.seen.values()), default=0)

    def _judge(self, pending: Sequence[int]) -> Hang | None:
        limit = self.watch.timeout_seconds
        said = f"for {limit} s (rl_config.heartbeat_timeout_seconds)"
        stopped = [rank for rank in pending if self.stopped[rank]]
        if any(self.stopped[rank] >= limit for rank in stopped):
            # Include all stopped ones: other nodes are observed later.
            return Hang(ranks=stopped, seen=f"was suspended by a signal {said}")
        if not self.silence_counts:
            return None
        silent = [rank for rank in pending if self.silent[rank] >= limit]
        if len(silent) < len(pending):
            # Others make progress; workers that wait for them do not hang.
            silent = [rank for rank in silent if self.seen[rank].count.is_steady]
        if not silent:
            return None
        # A worker that waits for another usually sleeps: name the running ones first.
        silent.sort(key=lambda rank: self.seen[rank].status != psutil.STATUS_RUNNING)
        states = ", ".join(sorted({self.seen[rank].status for rank in silent}))
        return Hang(ranks=silent, seen=f"made no progress {said}: {states}")
