"""Which workers hang: what is seen of them on all nodes, judged over the time of a call."""

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
"""Another node waits for its workers, kills those that stay, and waits for them."""


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Workers that do not get on."""

    ranks: Sequence[int]
    seen: str
    """What was seen of them, to be said behind their names."""


class GroupWatch:
    """All workers of a group: those on this node are looked at, a process on each other node looks.

    Ray starts such a process again, should it die.
    """

    def __init__(
        self,
        identities: Sequence[Identity],
        timeout_seconds: int,
        start_seconds: float,
        calls: RayCalls,
    ) -> None:
        """Look at each once; waits `start_seconds` for the other nodes.

        Raises:
            ClusterError: Another node does not look.
        """
        self.timeout_seconds, self.calls = timeout_seconds, calls
        self.known: set[int] = set()
        """Ranks that were seen."""
        self.lock = Lock()
        self.interval_seconds = min(1.0, timeout_seconds / 5)
        nodes: defaultdict[str, dict[int, ProcessKey]] = defaultdict(dict)
        for rank, identity in enumerate(identities):
            nodes[identity.node_id][rank] = identity.process
        here = nodes.pop(ray.get_runtime_context().get_node_id(), {})
        self.here = NodeWatch(here)
        self.others = [_OtherNode(node, keys, calls) for node, keys in nodes.items()]
        asked = [each.asked for each in self.others]
        try:
            calls.within(start_seconds, ray.get, asked, timeout=start_seconds)
        except RayError as error:
            raise ClusterError(f"the workers of other nodes cannot be watched: {error}") from error

    def look(self) -> dict[int, Sight]:
        """Say what each worker did when it was seen last."""
        with self.lock:
            seen = self.here.look()
            for node in self.others:
                seen |= node.look()
            self.known |= seen.keys()
        return seen

    def gone(self) -> list[int]:
        """Return the ranks whose processes were there once and are no more; on any thread."""
        seen = self.look()
        return sorted(self.known - seen.keys())

    def out_of_memory(self, rank: int) -> str:
        """Return whether the kernel has killed processes for their memory on the node of a rank."""
        for node in self.others:
            if rank in node.ranks:
                return node.out_of_memory()
        return self.here.out_of_memory()

    def dump_stacks(self) -> None:
        """Have every worker write its Python stacks into its log."""
        self._everywhere("dump_stacks")

    def end(self) -> None:
        """See that all workers are gone, which have been asked to end; then stop watching."""
        self._everywhere("end")
        with suppress(WorkerDiedError):
            for node in self.others:
                self.calls.within(_ANSWER_SECONDS, ray.kill, node.actor)

    def _everywhere(self, method: str) -> None:
        asked: list[Any] = []
        with suppress(WorkerDiedError):
            asked += [self.calls(getattr(node.actor, method).remote) for node in self.others]
        getattr(self.here, method)()
        with suppress(WorkerDiedError):
            if asked:
                limit, count = 2 * _ANSWER_SECONDS, len(asked)
                self.calls.within(limit, ray.wait, asked, num_returns=count, timeout=limit / 2)


class _OtherNode:
    """The eyes on another node; they answer when they do, and nobody waits for them."""

    def __init__(self, node_id: str, keys: Mapping[int, ProcessKey], calls: RayCalls) -> None:
        there = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": there}
        self.calls, self.ranks = calls, keys.keys()
        self.actor = calls(ray.remote(NodeWatch).options(**options).remote, dict(keys))
        self.asked = calls(self.actor.look.remote)
        self.seen: dict[int, Sight] = {}

    def out_of_memory(self) -> str:
        """Return what its kernel has counted; empty if the node does not answer."""
        with suppress(RayError, WorkerDiedError):
            asked = self.calls(self.actor.out_of_memory.remote)
            said: str = self.calls(ray.get, asked, timeout=_ANSWER_SECONDS)
            return said
        return ""

    def look(self) -> dict[int, Sight]:
        """Return the last answer: workers of a node that is silent seem not to get on."""
        if self.calls(ray.wait, [self.asked], timeout=0)[0]:
            asked, self.asked = self.asked, self.calls(self.actor.look.remote)
            with suppress(RayError):
                self.seen = self.calls(ray.get, asked)
        return self.seen


class Vigil:
    """How long the workers have not got on while one call is waited for.

    Seconds count from look to look, and no more of them than looks can be apart: whatever stopped
    this process too, or all of the machine, is nobody's silence.
    """

    def __init__(self, watch: GroupWatch, *, silence_counts: bool) -> None:
        """Begin with none. Where silence does not count, only a stopped process is a hang."""
        self.watch, self.interval_seconds = watch, watch.interval_seconds
        self.silence_counts = silence_counts
        self.seen: dict[int, Sight] = {}
        self.silent: defaultdict[int, float] = defaultdict(float)
        self.stopped: defaultdict[int, float] = defaultdict(float)
        self.looked = time.monotonic()

    def look(self, pending: Collection[int]) -> Hang | None:
        """Say which of the workers that are to answer hang."""
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
        """Return the ticks of the busiest worker in the call, as far as seen."""
        return max((sight.count.work for sight in self.seen.values()), default=0)

    def _judge(self, pending: Sequence[int]) -> Hang | None:
        limit = self.watch.timeout_seconds
        said = f"for {limit} s (rl_config.heartbeat_timeout_seconds)"
        stopped = [rank for rank in pending if self.stopped[rank]]
        if any(self.stopped[rank] >= limit for rank in stopped):
            # All that are: those of other nodes are seen later.
            return Hang(ranks=stopped, seen=f"did not run, stopped by a signal, {said}")
        if not self.silence_counts:
            return None
        silent = [rank for rank in pending if self.silent[rank] >= limit]
        if len(silent) < len(pending):
            # The others get on, and what waits for them is well.
            silent = [rank for rank in silent if self.seen[rank].count.is_steady]
        if not silent:
            return None
        # Whoever waits for another sleeps, as a rule: the other is named first.
        silent.sort(key=lambda rank: self.seen[rank].status != psutil.STATUS_RUNNING)
        states = ", ".join(sorted({self.seen[rank].status for rank in silent}))
        return Hang(ranks=silent, seen=f"made no progress {said}: {states}")
