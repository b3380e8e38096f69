"""Calls of Ray that can be interrupted by a signal, or by the loss of Ray's own processes.

Ray's compiled code waits for the raylet without a limit, and Python runs no signal handler
meanwhile. So each call is made on a separate thread, and the caller waits where it can be
interrupted. Ray also ends this process if it touches the object store of a raylet that has ended;
so the processes are checked before each call.
"""

import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import finalize

import psutil
import ray
from ray.exceptions import RayError

from mindrl.errors import WorkerDiedError
from mindrl.platform.endings import ending_of_child

T = TypeVar("T")

_LOOK_SECONDS = 0.5
_LEAST_SECONDS = 5.0
"""Longer than the time limits passed to Ray's own calls."""
_HURRIED_SECONDS = 3.0
"""Limit of a silence after a request to stop the run."""
_HEAD_SECONDS = 30.0
"""Longest wait for the head of a joined cluster; after 60 s Ray ends this process itself."""
_CONNECT_SECONDS = 1.0
_TOGETHER_SECONDS = 0.02
"""An error is raised this much later, so that answers that arrive together are taken together."""
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass
class RayProcess:
    """A process of Ray on this machine."""

    name: str
    process: psutil.Process
    stopped_seconds: float = 0.0

    def __str__(self) -> str:
        """Return its name and process id."""
        return f"Ray's process {self.name} ({self.process.pid} on this machine)"

    def status(self) -> str | None:
        """Return psutil's status; None if it has ended."""
        with suppress(psutil.NoSuchProcess):
            status: str = self.process.status()
            return None if status in _ENDED else status
        return None


class RayCalls:
    """Makes calls of Ray for any thread, and watches the processes that answer them."""

    def __init__(self, limit_seconds: float) -> None:
        """Set the seconds after which a silent Ray counts as lost."""
        self.limit_seconds = limit_seconds
        self.is_hurried: Callable[[], bool] = lambda: False
        """Returns whether the run was asked to stop, and so must not wait for a silent Ray."""
        self.processes: Sequence[RayProcess] = ()
        self.head: tuple[str, int] | None = None
        """Address of the control process of a joined cluster."""
        self._head_seconds = self._unseen_seconds = 0.0
        self._looked = time.monotonic()
        self._lock = threading.Lock()
        self._threads = threading.local()
        self._abandoned: list[Future[Any]] = []

    def watch(self, addresses: Mapping[str, Any], *, is_ours: bool) -> None:
        """Watch the Ray that `ray.init` has connected to; `addresses` is its `address_info`.

        For a joined cluster, watch this machine's raylet and the address of the head.
        """
        marks = {"raylet": f"--raylet_socket_name={addresses['raylet_socket_name']}"}
        if is_ours:
            marks["gcs_server"] = f"--session-dir={addresses['session_dir']}"
        self.processes = [*_found(marks)]
        host, _, port = str(addresses["gcs_address"]).rpartition(":")
        self.head = None if is_ours else (host.strip("[]"), int(port))
        self._head_seconds = self._unseen_seconds = 0.0
        self._looked = time.monotonic()

    def forget(self) -> None:
        """Stop watching."""
        self.processes, self.head = (), None

    def __call__(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call a function of Ray, and wait for it.

        Raises:
            WorkerDiedError: Ray's processes have ended, were stopped for too long, or gave no
                answer.
            BaseException: Raised by the function, or by a signal handler.
        """
        self.refuse_lost()
        return self.within(None, function, *arguments, **named)

    def answered(
        self, references: list[Any], seconds: float, together_seconds: float = _TOGETHER_SECONDS
    ) -> list[Any]:
        """Wait for the first answer, then a moment for the others; return all that have arrived.

        The cost of a wait grows with the number of references, so one wait collects many answers.
        Raises as `__call__`.
        """

        def wait_for() -> list[Any]:
            done, _ = ray.wait(references, num_returns=1, timeout=seconds)
            if done and len(references) > 1:
                count = len(references)
                done, _ = ray.wait(references, num_returns=count, timeout=together_seconds)
            return [*done]

        return self(wait_for)

    def results(self, references: list[Any]) -> list[tuple[Any, RayError | None]]:
        """Return the results up to the first that is an error. Raises as `__call__`."""

        def get_each() -> list[tuple[Any, RayError | None]]:
            found: list[tuple[Any, RayError | None]] = []
            with suppress(RayError):
                return [(result, None) for result in ray.get(references)]
            for reference in references:
                try:
                    found.append((ray.get(reference), None))
                except RayError as error:
                    return [*found, (None, error)]
            return found

        return self(get_each)

    def within(
        self, limit_seconds: float | None, function: Callable[..., T], *arguments: Any, **named: Any
    ) -> T:
        """Call a function like `__call__`, with another limit, and even if Ray is already lost."""
        answer: Future[T] = Future()
        silent, looked = 0.0, time.monotonic()
        try:
            self._thread().orders.put((answer, lambda: function(*arguments, **named)))
            while not wait([answer], timeout=_LOOK_SECONDS).done:
                now = time.monotonic()
                silent, looked = silent + min(now - looked, 2 * _LOOK_SECONDS), now
                self.refuse_lost()
                limit = limit_seconds or max(_LEAST_SECONDS, self._limit())
                if silent >= limit:
                    raise WorkerDiedError(f"Ray did not respond for {self._duration_text(limit)}")
        finally:
            if not answer.done():
                self._threads.caller = None
                self._abandoned.append(answer)
        return answer.result()

    def refuse_lost(self) -> None:
        """Raise WorkerDiedError if Ray's processes are lost."""
        if (why := self.lost()) is not None:
            raise WorkerDiedError(why)

    def lost(self, *, at_once: bool = False) -> str | None:
        """Return which of Ray's processes has ended, or was stopped for too long.

        With `at_once`, a process that is stopped now counts as lost immediately.
        """
        with self._lock:
            now = time.monotonic()
            passed, self._looked = min(now - self._looked, 2 * _LOOK_SECONDS), now
            limit = 0.0 if at_once else self._limit()
            for each in self.processes:
                status = each.status()
                if status is None:
                    return f"{each} {ending_of_child(each.process.pid)}"
                is_stopped = status in _STOPPED
                each.stopped_seconds = each.stopped_seconds + passed if is_stopped else 0.0
                if is_stopped and each.stopped_seconds >= limit:
                    return f"{each} was suspended by a signal for {self._duration_text(limit)}"
            return self._lost_head(passed)

    def family(self) -> list[psutil.Process]:
        """Return the watched processes and all their descendants."""
        found: list[psutil.Process] = []
        for each in self.processes:
            with suppress(psutil.NoSuchProcess):
                found += [each.process, *each.process.children(recursive=True)]
        return found

    def wake(self) -> None:
        """Resume stopped processes, and wait for the calls that they have not answered."""
        for each in self.processes:
            if each.status() in _STOPPED:
                each.process.send_signal(signal.SIGCONT)
        wait(self._abandoned, timeout=2 * _HURRIED_SECONDS)
        self._abandoned = [each for each in self._abandoned if not each.done()]

    def _lost_head(self, passed: float) -> str | None:
        """Return why the head is lost; connect to it at most once in `_LOOK_SECONDS`."""
        self._unseen_seconds += passed
        if self.head is None or self._unseen_seconds < _LOOK_SECONDS:
            return None
        unseen, self._unseen_seconds = self._unseen_seconds, 0.0
        try:
            with socket.create_connection(self.head, _CONNECT_SECONDS):
                self._head_seconds = 0.0
        except OSError as error:
            self._head_seconds += unseen
            if self._head_seconds >= min(_HEAD_SECONDS, self._limit()):
                host, port = self.head
                return f"cannot reach the head of the Ray cluster at {host}:{port}: {error}"
        return None

    def _limit(self) -> float:
        hurried = _HURRIED_SECONDS if self.is_hurried() else self.limit_seconds
        return min(self.limit_seconds, hurried)

    def _duration_text(self, seconds: float) -> str:
        source = " (rl_config.heartbeat_timeout_seconds)" if seconds == self.limit_seconds else ""
        return f"{seconds:g} s{source}"

    def _thread(self) -> "_CallThread":
        """Return the thread that makes the calls of the current thread."""
        found: _CallThread | None = getattr(self._threads, "caller", None)
        if found is None:
            found = self._threads.caller = _CallThread()
            found.start()
            # The current thread drops this object when it ends.
            owner = self._threads.owner = _Owner()
            finalize(owner, found.orders.put, None).atexit = False
        return found


class _Owner:
    """Exists as long as the thread that makes calls."""


class _CallThread(threading.Thread):
    """Makes calls in sequence; the interpreter's exit does not wait for it."""

    def __init__(self) -> None:
        super().__init__(name="ray-calls", daemon=True)
        self.orders: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def run(self) -> None:
        """Make the calls until None comes."""
        while (order := self.orders.get()) is not None:
            answer, call = order
            try:
                answer.set_result(call())
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                answer.set_exception(error)
            # An answer may be large, and the next order may come much later.
            del answer, call, order


def _found(marks: Mapping[str, str]) -> Sequence[RayProcess]:
    """Return the processes of this machine by their names and a mark in their command lines."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        for name, mark in marks.items():
            if process.info["name"] == name and mark in (process.info["cmdline"] or ()):
                found.append(RayProcess(name, process))
    return found
