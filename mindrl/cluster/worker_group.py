"""The worker processes of a run: called together, and watched while they work."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from mindrl.cluster.call_limits import CallKind, CallLimits, Limit, kind_of
from mindrl.cluster.deaths import death_of
from mindrl.cluster.group_watch import GroupWatch, Vigil
from mindrl.cluster.ray_cluster import RayCluster
from mindrl.cluster.worker_names import stages_now, start_lines, worker_names
from mindrl.cluster.worker_process import Identity, Reply, WorkerPlan, WorkerProcess
from mindrl.errors import ClusterError, MindrlError, WorkerDiedError
from mindrl.observability.logs import tail
from mindrl.observability.trace import TRACE, span

_GRACE_SECONDS = 3.0
"""A worker that dies makes its peers fail too: wait this long to find the first one."""
_KILL_SECONDS = 10.0
_START = "start-up"
_MOST_TRACED = 16
"""A timeline of a thousand ranks is half a gigabyte, and the driver writes it."""


@dataclass(frozen=True, kw_only=True)
class Crew:
    """The processes of one world: their nodes, and the workers that they build."""

    factory: str
    """The `module:function` that builds a worker from the plan in its process."""
    nodes: Sequence[int]
    """Node of each rank, in the cluster's numbering."""
    name: str = "worker"
    """Prefix of each worker's rank in errors and in the name of its log."""
    meanwhile: Callable[[], None] = lambda: None
    """Called repeatedly while they start; may raise to abort the start."""
    show: Callable[[str], None] = lambda _: None
    """Called with the current stages whenever they change during the start."""


class WorkerGroup:
    """One worker per device of a world, in the order of their ranks.

    Only one thread at a time makes calls; groups are independent of each other.
    """

    def __init__(
        self,
        cluster: RayCluster,
        plan: WorkerPlan,
        logs: Path,
        crew: Crew,
        notify: Callable[[str], None],
    ) -> None:
        """Start the processes and build the workers in them.

        Each has a log file in the folder `logs`; `notify` is called with lines about progress.

        Raises:
            WorkerDiedError: A process ended, or was silent for too long, while it started.
            ClusterError: A process is not on the node of its rank.
            MindrlError: As raised when a worker is built.
        """
        config, self.name, rl = plan.config, crew.name, plan.config.rl_config
        size = len(crew.nodes)
        self.calls, self.prefork = cluster.calls, cluster.prefork
        self.logs = [logs / f"{crew.name}_{rank}.log" for rank in range(size)]
        self.limits = CallLimits(
            first_seconds=rl.worker_call_timeout_seconds,
            least_seconds=rl.heartbeat_timeout_seconds,
        )
        self.identities: list[Identity] = []
        self.watch: GroupWatch | None = None
        self.handles: list[Any] = []
        self.show: Callable[[str], None] | None = None
        self.meanwhile = crew.meanwhile
        """Called repeatedly while calls are waited for; must be quick."""
        cluster.revive_prefork(notify)
        try:
            is_deterministic = config.megatron_training.is_deterministic
            self._start(cluster, crew.nodes, deterministic=is_deterministic)
            seconds = rl.worker_start_timeout_seconds
            text = f"{seconds} s (rl_config.worker_start_timeout_seconds)"
            limit = Limit(seconds=seconds, description=text)
            references = [self.calls(handle.identify.remote) for handle in self.handles]
            starting = dict(enumerate(references))
            self.identities = self.answers(starting, limit, _START)
            self.watch = GroupWatch(
                self.identities, rl.heartbeat_timeout_seconds, limit.left(), self.calls
            )
            self.vigil = Vigil(self.watch, silence_counts=False)
            refuse_misplaced(self.identities, cluster.devices_per_node)
            notify(f"{size} {crew.name}(s) started ({limit.passed():.1f} s); loading the models")
            address = self.identities[0].address
            builds = [handle.build.remote for handle in self.handles]
            references = [self.calls(build, address, plan, crew.factory) for build in builds]
            building = dict(enumerate(references))
            # Engines are silent while they compile and load; the start has its own limit.
            self.show = crew.show
            seconds_of = self.answers(building, limit, _START, silence_counts=False)
            self.show = None
            for line in start_lines(seconds_of, crew.name):
                notify(line)
        except BaseException:
            self.stop()
            raise

    def _start(self, cluster: RayCluster, nodes: Sequence[int], *, deterministic: bool) -> None:
        """Start the processes without waiting for them."""
        # Ray pickles and exports each class that it wraps.
        process = ray.remote(WorkerProcess)
        for rank, (node, log) in enumerate(zip(nodes, self.logs, strict=True)):
            options = cluster.worker_options(node, deterministic=deterministic)
            start = process.options(**options).remote
            self.handles.append(self.calls(start, cluster.platform.kind, rank, len(nodes), log))

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.handles)

    def begin(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
        *,
        first: int = 0,
    ) -> "WorkerCall":
        """Start a call of a method on workers, without waiting.

        There is a tuple of arguments for each rank, starting at `first`; a tuple shared by several
        ranks is pickled once. For a rank not in `answering`, counted from `first`, the result is
        None and is not transferred; None transfers all. Each worker executes its calls in order.
        """
        assert first + len(arguments) <= self.size, "there are more arguments than workers"
        shares = {id(given): given for given in arguments}
        stored = {key: self.calls(ray.put, given) for key, given in shares.items()}
        called_at, step, traced = TRACE.now(), TRACE.step, traced_ranks(self.size)

        def send() -> dict[int, Any]:
            return {
                first + place: self.handles[first + place].call.remote(
                    method,
                    stored[id(given)],
                    answers=answering is None or place in answering,
                    step=step,
                    traced=first + place in traced,
                )
                for place, given in enumerate(arguments)
            }

        return WorkerCall(self, method, self.calls(send), kind_of(method, arguments), called_at)

    def call(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
    ) -> list[Any]:
        """Call a method on every worker, as `begin`, and wait for all; return the results.

        Raises as `WorkerCall.wait`.
        """
        return self.begin(method, arguments, answering).wait()

    def answered(self, calls: Sequence["WorkerCall"], seconds: float) -> list[int]:
        """Wait up to `seconds` for the first answer to running calls.

        Returns the indices of calls that a worker has answered. Raises as `WorkerCall.wait` if
        workers hang; their failures are raised by `wait`.
        """
        owners = {
            reference: index
            for index, call in enumerate(calls)
            for reference in call.references.values()
        }
        done = self.calls.answered([*owners], seconds, together_seconds=0.0)
        if not done:
            self.meanwhile()
            for call in calls:
                call.refuse_hang()
        return sorted({owners[reference] for reference in done})

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on every worker with the same arguments."""
        return self.call(method, [arguments] * self.size)

    def lost(self) -> str | None:
        """Return which processes have ended, or were stopped for too long; None if all are well.

        Independent of calls and waits.
        """
        if self.watch is None:
            return None
        if (why := self.calls.lost()) is not None:
            return why
        if ranks := self.watch.gone():
            what = death_of(ranks[0], self._identity(ranks[0]), self.prefork, self.watch)
        elif hang := self.vigil.look(range(self.size)):
            ranks, what = [*hang.ranks], hang.seen
        else:
            return None
        who = worker_names(ranks, self.identities, self.name)
        return self._with_log(f"{who} {what}", ranks[0], "a check during other calls")

    def stop(self) -> None:
        """End the worker processes, and wait until they have ended."""
        if self.calls.lost(at_once=True) is None:
            with suppress(WorkerDiedError):
                for handle in self.handles:
                    self.calls.within(_KILL_SECONDS, ray.kill, handle)
        if self.watch is not None:
            self.watch.end()

    def answers(
        self,
        references: Mapping[int, Any],
        limit: Limit,
        stage: str,
        *,
        silence_counts: bool = True,
    ) -> list[Any]:
        """Wait for workers, by rank; return the results. Raises as `WorkerCall.wait`."""
        results = dict[int, Any].fromkeys(references)
        pending = {reference: rank for rank, reference in references.items()}
        vigil = None if self.watch is None else Vigil(self.watch, silence_counts=silence_counts)
        while pending:
            seconds = min(1.0, limit.left()) if vigil is None else vigil.interval_seconds
            done = self.calls.answered([*pending], seconds)
            if not done:
                self.meanwhile()
                self.refuse_hang(list(pending.values()), limit, vigil, stage)
                if self.show is not None and vigil is not None:
                    self.show(
                        stages_now(
                            {rank: each.count.stage for rank, each in vigil.seen.items()}, self.name
                        )
                    )
                continue
            for reference, (result, error) in zip(done, self.calls.results(done), strict=False):
                rank = pending.pop(reference)
                if error is not None:
                    raise self._explain(rank, error, pending, stage) from error
                results[rank] = result
        return [*results.values()]

    def refuse_hang(
        self, pending: Sequence[int], limit: Limit, vigil: Vigil | None, stage: str
    ) -> None:
        """Raise if workers hang, or have taken too long."""
        hang = None if vigil is None else vigil.look(pending)
        if hang is not None:
            pending, what = hang.ranks, hang.seen
        elif limit.is_over(0 if vigil is None else vigil.most_done()):
            what = f"did not respond within {limit.description}"
        else:
            return
        who = worker_names(pending, self.identities, self.name)
        found = self._with_log(f"{who} {what}", pending[0], stage)
        raise WorkerDiedError(found + self._dumped_stacks())

    def _dumped_stacks(self) -> str:
        """Let the workers write their Python stacks to their logs; return a note about it."""
        if self.watch is None:
            return ""
        self.watch.dump_stacks()
        return f"\nthe Python stacks of each worker are in its log: {self.logs[0].parent}"

    def _explain(
        self,
        rank: int,
        error: RayError,
        pending: dict[Any, int],
        stage: str,
    ) -> MindrlError:
        """Return the error that came first among workers that fail together."""
        self.calls.refuse_lost()
        deadline = time.monotonic() + _GRACE_SECONDS
        while isinstance(error, RayTaskError) and pending and time.monotonic() < deadline:
            for reference in self.calls.answered([*pending], 0.2):
                other, (_, failure) = pending.pop(reference), self.calls.results([reference])[0]
                # A worker with a RayTaskError is alive, and was not the first to fail.
                if failure is not None and not isinstance(failure, RayTaskError):
                    rank, error = other, failure
        if isinstance(error, RayTaskError) and isinstance(error.cause, MindrlError):
            return error.cause
        who = worker_names([rank], self.identities, self.name)
        if not isinstance(error, RayTaskError):
            what = death_of(rank, self._identity(rank), self.prefork, self.watch, str(error))
            return WorkerDiedError(self._with_log(f"{who} {what}", rank, stage))
        what = f"{who} failed: {type(error.cause).__name__}: {error.cause}"
        silent = list(pending.values())
        if silent:
            # A silent rank may be the cause: a rank that waits too long for it fails first.
            names = worker_names(silent, self.identities, self.name)
            what += f"\nno response yet from {names}"
        found = self._with_log(what, rank, stage)
        return WorkerDiedError(found + self._dumped_stacks() if silent else found)

    def _identity(self, rank: int) -> Identity | None:
        return self.identities[rank] if self.identities else None

    def _with_log(self, what: str, rank: int, stage: str) -> str:
        log = self.logs[rank]
        return f"{what}\nduring: {stage}\nlast lines of {log}:\n{tail(log, lines=20)}"


class WorkerCall:
    """A running or finished call of a method on workers of a group."""

    def __init__(
        self,
        group: WorkerGroup,
        method: str,
        references: Mapping[int, Any],
        kind: CallKind,
        called_at: int,
    ) -> None:
        """Start the clock; `called_at` is the start time on the clock of the trace."""
        self.group, self.method, self.references, self.kind = group, method, references, kind
        self.limit, self.called_at = group.limits.of(kind), called_at
        self.vigil = None if group.watch is None else Vigil(group.watch, silence_counts=True)

    def refuse_hang(self) -> None:
        """Raise as `wait` if workers hang; observes them at the same interval."""
        if self.vigil is None or self.vigil.is_due():
            self.group.refuse_hang([*self.references], self.limit, self.vigil, self.method)

    def wait(self, *, silence_counts: bool = True) -> list[Any]:
        """Wait for all of them; return the results.

        With `silence_counts=False`, silence is no hang: the workers wait for others with a limit of
        their own.

        Raises:
            WorkerDiedError: A worker died, raised, hangs, or took far longer than ever before;
                names it, the method and its last log lines.
            MindrlError: Raised by a worker on purpose; passed on unchanged.
        """
        with span(f"wait for {self.method}"):
            answers: list[Reply] = self.group.answers(
                self.references, self.limit, self.method, silence_counts=silence_counts
            )
        for rank, reply in zip(self.references, answers, strict=True):
            TRACE.take(f"{self.group.name}-{rank}", reply.trace, called_at=self.called_at)
        ticks = max(reply.ticks for reply in answers)
        self.group.limits.note(self.kind, self.limit.passed(), ticks)
        return [reply.result for reply in answers]


def traced_ranks(count: int) -> Collection[int]:
    """Return the ranks that record timelines: all, or some of many, evenly spaced."""
    if count <= _MOST_TRACED:
        return range(count)
    return {place * (count - 1) // (_MOST_TRACED - 1) for place in range(_MOST_TRACED)}


def refuse_misplaced(identities: Sequence[Identity], devices_per_node: int) -> None:
    """Refuse processes that are not on the node and device of their rank.

    Each group of `devices_per_node` consecutive ranks belongs on a separate node, with a device
    each.

    Raises:
        ClusterError: Names the first misplaced rank.
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
                f"{first + devices_per_node - 1} need their own node with one device each; Ray "
                f"placed rank {rank} on node {found.node}, device {found.device}, together with "
                f"{[(each.node, each.device) for each in peers or others]}"
            )
