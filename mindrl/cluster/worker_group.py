"""The worker processes of a run, called together, watched while they work."""

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from mindrl.cluster.call_limits import CallLimits, Limit, kind_of
from mindrl.cluster.group_watch import GroupWatch, Vigil
from mindrl.cluster.ray_cluster import RayCluster
from mindrl.cluster.worker_process import Identity, WorkerPlan, WorkerProcess
from mindrl.errors import ClusterError, MindrlError, WorkerDiedError
from mindrl.observability.logs import tail

_GRACE_SECONDS = 3.0
"""A worker that dies makes its peers fail too: wait so long to see which one was first."""
_MOST_NAMED = 8
"""Workers that an error names one by one."""


class WorkerGroup:
    """One worker per device of the cluster, in the order of their ranks."""

    def __init__(
        self,
        cluster: RayCluster,
        plan: WorkerPlan,
        logs: Path,
        factory: str,
        tell: Callable[[str], None],
    ) -> None:
        """Start the processes and build the workers in them.

        Each has a log file in the folder `logs`. `factory` is the `module:function` that builds a
        worker from the plan inside its process; `tell` takes a line about how far the start is.

        Raises:
            WorkerDiedError: A process ended, or was silent for too long, while it started.
            ClusterError: A process is not on the node that its rank belongs on.
            MindrlError: Whatever building a worker raises.
        """
        config, self.stage, rl = plan.config, "start-up", plan.config.rl_config
        self.logs = [logs / f"worker_{rank}.log" for rank in range(config.world_size)]
        self.limits = CallLimits(
            first_seconds=rl.worker_call_timeout_seconds,
            least_seconds=rl.heartbeat_timeout_seconds,
        )
        self.identities: list[Identity] = []
        self.watch: GroupWatch | None = None
        self.handles: list[Any] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """Done again and again while calls are waited for; does not take long."""
        for rank, log in enumerate(self.logs):
            options = cluster.worker_options(
                rank, deterministic=config.megatron_training.is_deterministic
            )
            remote = ray.remote(WorkerProcess).options(**options)
            self.handles.append(remote.remote(cluster.platform.kind, rank, log))
        try:
            seconds = rl.worker_start_timeout_seconds
            said = f"{seconds} s (rl_config.worker_start_timeout_seconds)"
            limit = Limit(seconds=seconds, said=said)
            starting = [handle.identify.remote() for handle in self.handles]
            self.identities = self._wait(starting, limit)
            self.watch = GroupWatch(self.identities, rl.heartbeat_timeout_seconds, limit.left())
            refuse_misplaced(self.identities, cluster.devices_per_node)
            tell(f"{len(self.handles)} worker(s) started; loading the models")
            address = self.identities[0].address
            building = [handle.build.remote(address, plan, factory) for handle in self.handles]
            # Engines are silent while they compile and load; the start has a limit of its own.
            self._wait(building, limit, silence_counts=False)
        except BaseException:
            self.stop()
            raise

    def call(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
    ) -> list[Any]:
        """Call a method on every worker at once and wait for all of them; returns what each says.

        There is a tuple of arguments for each rank; one that several share is pickled once. Of a
        rank that is not in `answering` the result is None and does not travel; None asks all.

        Raises:
            WorkerDiedError: A worker died, raised, hangs, or took far longer than ever before;
                names it, the stage and its last log lines.
            MindrlError: Raised by a worker on purpose; passed on as it is.
        """
        self.stage = method
        shares = {id(given): given for given in arguments}
        stored = {key: ray.put(given) for key, given in shares.items()}
        calls = [
            handle.call.remote(
                method, stored[id(given)], answers=answering is None or rank in answering
            )
            for rank, (handle, given) in enumerate(zip(self.handles, arguments, strict=True))
        ]
        limit = self.limits.of(kind := kind_of(method, arguments))
        answers = self._wait(calls, limit)
        self.limits.note(kind, limit.passed(), max(ticks for ticks, _ in answers))
        return [answer for _, answer in answers]

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on every worker with the same arguments."""
        return self.call(method, [arguments] * len(self.handles))

    def stop(self) -> None:
        """End the worker processes, and wait until they are gone."""
        for handle in self.handles:
            ray.kill(handle)
        if self.watch is not None:
            self.watch.end()

    def _wait(
        self, references: list[Any], limit: Limit, *, silence_counts: bool = True
    ) -> list[Any]:
        results: list[Any] = [None] * len(references)
        pending = {reference: rank for rank, reference in enumerate(references)}
        vigil = None if self.watch is None else Vigil(self.watch, silence_counts=silence_counts)
        while pending:
            seconds = limit.left() if vigil is None else vigil.interval_seconds
            done, _ = ray.wait(list(pending), num_returns=1, timeout=seconds)
            if not done:
                self.meanwhile()
                self._refuse_hang(list(pending.values()), limit, vigil)
                continue
            rank = pending.pop(done[0])
            try:
                results[rank] = ray.get(done[0])
            except (RayActorError, RayTaskError) as error:
                raise self._explain(rank, error, pending) from error
        return results

    def _refuse_hang(self, pending: Sequence[int], limit: Limit, vigil: Vigil | None) -> None:
        """Raise if workers hang, or have taken too long."""
        hang = None if vigil is None else vigil.look(pending)
        if hang is not None:
            pending, what = hang.ranks, hang.seen
        elif limit.is_over(0 if vigil is None else vigil.most_done()):
            what = f"gave no answer within {limit.said}"
        else:
            return
        found = self._with_log(f"{worker_names(pending, self.identities)} {what}", pending[0])
        raise WorkerDiedError(found + self._dumped_stacks())

    def _dumped_stacks(self) -> str:
        """Have the workers write their Python stacks into their logs; says so."""
        if self.watch is None:
            return ""
        self.watch.dump_stacks()
        return f"\nthe Python stacks of each worker are in its log: {self.logs[0].parent}"

    def _explain(
        self, rank: int, error: RayActorError | RayTaskError, pending: dict[Any, int]
    ) -> MindrlError:
        """Find the first cause among workers that fail together."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while isinstance(error, RayTaskError) and pending and time.monotonic() < deadline:
            done, _ = ray.wait(list(pending), num_returns=1, timeout=0.2)
            for reference in done:
                other = pending.pop(reference)
                try:
                    ray.get(reference)
                except RayActorError as death:
                    rank, error = other, death
                except RayTaskError:
                    continue  # It lives, and was not the first to fail.
        if isinstance(error, RayTaskError) and isinstance(error.cause, MindrlError):
            return error.cause
        who = worker_names([rank], self.identities)
        if isinstance(error, RayActorError):
            return WorkerDiedError(self._with_log(f"{who} died: its process is gone", rank))
        what = f"{who} failed: {type(error.cause).__name__}: {error.cause}"
        silent = list(pending.values())
        if silent:
            # Whoever waits too long for another rank fails in its place.
            what += f"\nno answer yet from {worker_names(silent, self.identities)}"
        found = self._with_log(what, rank)
        return WorkerDiedError(found + self._dumped_stacks() if silent else found)

    def _with_log(self, what: str, rank: int) -> str:
        log = self.logs[rank]
        return f"{what}\nduring: {self.stage}\nlast lines of {log}:\n{tail(log, lines=20)}"


def worker_names(ranks: Sequence[int], identities: Sequence[Identity]) -> str:
    """Name workers by rank, process and node; there are no identities while they start."""
    names = []
    for rank in ranks[:_MOST_NAMED]:
        found = identities[rank] if identities else None
        where = f", process {found.process.pid} on {found.node}" if found else ""
        names.append(f"worker-{rank} (rank {rank}{where})")
    if len(ranks) > _MOST_NAMED:
        names.append(f"{len(ranks) - _MOST_NAMED} more")
    return ", ".join(names)


def refuse_misplaced(identities: Sequence[Identity], devices_per_node: int) -> None:
    """Refuse processes that are elsewhere than every part of a run takes its ranks to be.

    Each `devices_per_node` ranks in a row belong on a node of their own, on a device each.

    Raises:
        ClusterError: Names the first rank that is elsewhere.
    """
    for rank, found in enumerate(identities):
        first = rank - rank % devices_per_node
        peers, others = identities[first:rank], identities[:first]
        if (
            any(other.node_id == found.node_id for other in others)
            or any(peer.node_id != found.node_id for peer in peers)
            or (found.device is not None and found.device in [peer.device for peer in peers])
        ):
            raise ClusterError(
                f"rl_config.actor_resource.npus_per_node={devices_per_node}: ranks {first} to "
                f"{first + devices_per_node - 1} belong on a node of their own, on a device each; "
                f"Ray put rank {rank} on node {found.node}, device {found.device}, beside "
                f"{[(each.node, each.device) for each in peers or others]}"
            )
