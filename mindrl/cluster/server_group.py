"""A server used as a rollout replica, with the calls of a worker group."""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from mindrl.batch.rollouts import Responses
from mindrl.errors import WorkerDiedError
from mindrl.observability.trace import span
from mindrl.rollout.engine import Request
from mindrl.rollout.http.replica import HttpReplica

_LOOK_SECONDS = 0.5


class ServerGroup:
    """Replaces a `WorkerGroup` of one rank; the server is not part of the run and outlives it."""

    def __init__(
        self,
        replica: HttpReplica,
        start_seconds: float,
        meanwhile: Callable[[], None],
    ) -> None:
        """Wait until the server answers; `meanwhile` is called repeatedly until then.

        Raises:
            WorkerDiedError: It does not answer within `start_seconds`.
        """
        self.replica, self.meanwhile = replica, meanwhile
        replica.wait_until_up(start_seconds, meanwhile)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"server-{replica.number}")
        self.methods: dict[str, Callable[..., Any]] = {
            "memory_plan": self._require_up,
            "join_link": replica.server.join_link,
            "receive_weights": replica.receive_weights,
            "generate_sequences": replica.generate,
            "begin_sequences": replica.begin,
            "advance_sequences": self._advance,
            "take_sequences": replica.take,
            "flush_metrics": replica.flush_metrics,
        }

    @property
    def size(self) -> int:
        """Number of workers."""
        return 1

    def begin(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,  # noqa: ARG002
        *,
        first: int = 0,
    ) -> "ServerCall":
        """Start a call of a method without waiting; see `WorkerGroup.begin`."""
        assert first == 0, "a server is one worker"
        (given,) = arguments

        def carry_out() -> Any:
            with span(method):
                return self.methods[method](*given)

        return ServerCall(self, self.thread.submit(carry_out))

    def call(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
    ) -> list[Any]:
        """Call a method, and wait for its answer; see `WorkerGroup.call`."""
        return self.begin(method, arguments, answering).wait()

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method with the same arguments on all ranks, here one."""
        return self.call(method, [arguments])

    def lost(self) -> str | None:
        """Return None: the process is not ours, and only its calls can fail."""
        return None

    def stop(self) -> None:
        """Stop using the server."""
        self.thread.shutdown(wait=False, cancel_futures=True)
        self.replica.close()

    def _advance(
        self,
        steps: int,
        more: Sequence[Request],
        until: int | None = None,  # noqa: ARG002
    ) -> tuple[list[int], Responses]:
        """Advance the server; its rounds end with the first response in any case."""
        whole = self.replica.advance(steps, more)
        return whole, self.replica.answers(whole)

    def _require_up(self) -> None:
        if not self.replica.client.is_up():
            raise WorkerDiedError(f"{self.replica.client.name} does not respond")


class ServerCall:
    """A call that a server executes, or has executed."""

    def __init__(self, group: ServerGroup, answer: Future[Any]) -> None:
        self.group, self.answer = group, answer

    def wait(self) -> list[Any]:
        """Wait for the answer, as that of the only rank.

        Raises:
            WorkerDiedError: The server does not answer, or its answers are not valid.
            ReshardError: Its weights did not arrive.
        """
        while not wait([self.answer], timeout=_LOOK_SECONDS).done:
            self.group.meanwhile()
        return [self.answer.result()]
