"""The worker processes of a run, called together, watched while they work."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RayActorError, RayTaskError

from mindrl.cluster.ray_cluster import RayCluster
from mindrl.cluster.worker_process import Identity, WorkerPlan, WorkerProcess
from mindrl.errors import ClusterError, MindrlError, WorkerDiedError
from mindrl.observability.logs import tail

_GRACE_SECONDS = 3.0
"""A worker that dies makes its peers fail too: wait so long to see which one was first."""
_END_SECONDS = 10.0
"""Ray's request to end is obeyed at once, unless the process is stopped."""
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
        config, self.stage = plan.config, "start-up"
        self.logs = [logs / f"worker_{rank}.log" for rank in range(config.world_size)]
        self.call_seconds = config.rl_config.worker_call_timeout_seconds
        self.identities: list[Identity] = []
        self.processes_here: list[psutil.Process] = []
        self.handles: list[Any] = []
        for rank, log in enumerate(self.logs):
            options = cluster.worker_options(
                rank, deterministic=config.megatron_training.is_deterministic
            )
            remote = ray.remote(WorkerProcess).options(**options)
            self.handles.append(remote.remote(cluster.platform.kind, rank, log))
        try:
            limit = _Limit(
                "rl_config.worker_start_timeout_seconds",
                config.rl_config.worker_start_timeout_seconds,
            )
            starting = [handle.identify.remote() for handle in self.handles]
            self.identities = self._wait(starting, limit)
            self.processes_here = _processes_here(self.identities)
            refuse_misplaced(self.identities, cluster.devices_per_node)
            tell(f"{len(self.handles)} worker(s) started; loading the models")
            address = self.identities[0].address
            building = [handle.build.remote(address, plan, factory) for handle in self.handles]
            self._wait(building, limit)
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
            WorkerDiedError: A worker died, raised, or gave no answer within
                `rl_config.worker_call_timeout_seconds`; names it, the stage and its last log lines.
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
        limit = _Limit("rl_config.worker_call_timeout_seconds", self.call_seconds)
        return self._wait(calls, limit)

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on every worker with the same arguments."""
        return self.call(method, [arguments] * len(self.handles))

    def stop(self) -> None:
        """End the worker processes and wait until those on this machine are gone."""
        for handle in self.handles:
            ray.kill(handle)
        _, stopped = psutil.wait_procs(self.processes_here, timeout=_END_SECONDS)
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(stopped, timeout=_END_SECONDS)

    def _wait(self, references: list[Any], limit: "_Limit") -> list[Any]:
        results: list[Any] = [None] * len(references)
        pending = {reference: rank for rank, reference in enumerate(references)}
        while pending:
            done, _ = ray.wait(list(pending), num_returns=1, timeout=limit.left())
            if not done:
                silent = list(pending.values())
                what = f"{worker_names(silent, self.identities)} gave no answer within {limit.said}"
                raise WorkerDiedError(self._with_log(what, silent[0]))
            rank = pending.pop(done[0])
            try:
                results[rank] = ray.get(done[0])
            except (RayActorError, RayTaskError) as error:
                raise self._explain(rank, error, pending) from error
        return results

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
        if silent := list(pending.values()):
            # Whoever waits too long for another rank fails in its place.
            what += f"\nno answer yet from {worker_names(silent, self.identities)}"
        return WorkerDiedError(self._with_log(what, rank))

    def _with_log(self, what: str, rank: int) -> str:
        log = self.logs[rank]
        return f"{what}\nduring: {self.stage}\nlast lines of {log}:\n{tail(log, lines=20)}"


class _Limit:
    """How long workers may be silent, counted from when it is made."""

    def __init__(self, key: str, seconds: int) -> None:
        self.said = f"{seconds} s ({key})"
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self.end - time.monotonic())


def worker_names(ranks: Sequence[int], identities: Sequence[Identity]) -> str:
    """Name workers by rank, process and node; there are no identities while they start."""
    names = []
    for rank in ranks[:_MOST_NAMED]:
        where = f", process {identities[rank].pid} on {identities[rank].node}" if identities else ""
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


def _processes_here(identities: Sequence[Identity]) -> list[psutil.Process]:
    """Return the processes on this machine; each stands for itself, whoever has its number later.

    One that has ended already is left out.
    """
    here = ray.get_runtime_context().get_node_id()
    found = []
    for identity in identities:
        with suppress(psutil.NoSuchProcess):
            if identity.node_id == here:
                found.append(psutil.Process(identity.pid))
    return found
