"""A rollout replica that is a separate server, used in rounds like a replica of workers.

Each request is retried until it is answered; its first answer is used. Answers that were not
sampled with the last published weights are refused: a restarted server has others. So are answers
that no engine can have sampled.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol
from uuid import uuid4

from mindrl.batch.rollouts import Responses
from mindrl.errors import AnswerError, ReshardError, WorkerDiedError
from mindrl.observability.progress import tick
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.http.answers import Answer
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.response_checks import CertainRow, response_error

_LOOK_SECONDS = 0.3
_ABORT_SECONDS = 0.5
"""Interval between calls that take back requests: one may still be on its way to the server."""


@dataclass
class _InFlight:
    """A request in flight."""

    request: Request
    name: str
    answer: Future[Answer]
    is_returned: bool = False
    """Whether `advance` has returned it as complete."""


class EngineServer(Protocol):
    """A server with its engine's API. All methods raise WorkerDiedError without an answer."""

    @property
    def client(self) -> ServerClient:
        """Client of the server."""

    def join_link(self, address: tuple[str, int], replica: int, generation: int) -> None:
        """Let the server's ranks join a link with the training ranks, in their `open_link`.

        Raises:
            ReshardError: Names the ranks that did not join in time.
        """

    def receive_weights(self, version: int) -> None:
        """Let the server receive the weights that the training ranks send, while it is paused.

        Requests of other clients continue with the new weights after their existing tokens; if the
        transfer fails the server stays paused.

        Raises:
            ReshardError: A peer has ended or does not respond, or the weights arrived corrupted.
        """

    def generate(self, request: Request, sampling: Sampling, name: str, seconds: float) -> Answer:
        """Request a response, with retries of `seconds` each.

        Raises:
            AnswerError: The answer is not valid.
        """

    def take_back(self, names: list[str]) -> None:
        """Let the server answer open requests with the tokens so far."""

    def close(self) -> None:
        """Stop using the server: open requests of all threads end, and are not repeated."""


@dataclass(kw_only=True)
class HttpReplica:
    """A server with the interface of `RolloutWorker`: weights first, then requests in rounds."""

    number: int
    server: EngineServer
    vocabulary: int
    """Vocabulary size of the model."""
    rows: int
    """Maximum number of concurrent requests."""
    answer_seconds: float
    """Longest wait for one response."""
    control_seconds: float
    """Longest wait for anything else."""
    round_seconds: float = 1.0
    """Longest round; the server's own steps cannot be counted."""
    version: int | None = None
    """Version of the weights; None if they are not valid."""
    in_flight: list[_InFlight] = field(default_factory=list)
    sampling: Sampling | None = None
    certain: CertainRow = field(default_factory=CertainRow)
    """Checks the complete answers, in order of arrival."""
    metrics: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        """Create a thread per concurrent request."""
        self.threads = ThreadPoolExecutor(self.rows, thread_name_prefix=f"replica-{self.number}")
        self.names = (f"mindrl-{uuid4().hex[:12]}-{each}" for each in count())

    @property
    def client(self) -> ServerClient:
        """Client of the server."""
        return self.server.client

    def wait_until_up(self, seconds: float, check_interrupt: Callable[[], None]) -> None:
        """Wait until the server answers; `check_interrupt` is called meanwhile and may raise.

        Raises:
            WorkerDiedError: It does not answer within `seconds`.
        """
        ends = time.monotonic() + seconds
        while not self.client.is_up():
            if time.monotonic() > ends:
                raise WorkerDiedError(
                    f"{self.client.name} at {self.client.url} did not start within {seconds:g} s"
                )
            check_interrupt()
            time.sleep(_LOOK_SECONDS)

    def receive_weights(self, version: int) -> None:
        """Let the server receive new weights: see `EngineServer`."""
        assert not self.in_flight, "new weights arrived while requests are open"
        began = time.perf_counter()
        self.version = None
        self.server.receive_weights(version)
        self.version = version
        self.metrics["seconds/receive_weights"] += time.perf_counter() - began

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> Responses:
        """Complete each prompt once, in order, as `RolloutEngine.generate`; raises as `advance`."""
        given = zip(prompts, seeds, strict=True)
        self.begin([Request(token_ids=tuple(each), drawn=0, seed=s) for each, s in given], sampling)
        missing = len(prompts)
        while missing:
            missing -= len(self.advance(1, []))
        return self.take()

    def begin(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Start requests, as `RolloutEngine.begin`.

        Raises:
            ReshardError: There are no weights.
        """
        if self.version is None:
            raise ReshardError("this replica has no weights: the last transfer did not complete")
        assert not self.in_flight, "earlier requests have been collected"
        self.sampling = sampling
        self._send(requests)

    def advance(self, steps: int, more: Sequence[Request]) -> list[int]:  # noqa: ARG002
        """Wait for a response, at most one round; return the indices of completed requests.

        Raises:
            WorkerDiedError: A request was not answered in time, or with other weights.
        """
        began = time.perf_counter()
        self._send(more)
        ends = time.monotonic() + self.round_seconds
        while not (found := self._newly_completed()) and time.monotonic() < ends:
            left = [each.answer for each in self.in_flight if not each.answer.done()]
            if not left:
                break
            wait(left, timeout=0.05)
        tick()
        self.metrics["seconds/generate"] += time.perf_counter() - began
        return found

    def flush_metrics(self) -> dict[str, float]:
        """Return the seconds since the last call."""
        metrics, self.metrics = {"seconds/generate": 0.0, **self.metrics}, defaultdict(float)
        return metrics

    def close(self) -> None:
        """End open requests and send no others; the server keeps running."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.server.close()

    def take(self) -> Responses:
        """Return the tokens of each request, in order, complete or not; the server drops them.

        Raises:
            WorkerDiedError: The server does not answer, or has other weights.
        """
        ends = time.monotonic() + self.control_seconds
        for each in self.in_flight:
            each.answer.cancel()
        while left := [each for each in self.in_flight if not each.answer.done()]:
            if time.monotonic() > ends:
                raise WorkerDiedError(f"{self.client.name} did not abort {len(left)} requests")
            self.server.take_back([each.name for each in left])
            wait([each.answer for each in left], timeout=_ABORT_SECONDS)
        in_flight, self.in_flight = self.in_flight, []
        none = Answer(token_ids=[], logprobs=[], ending="abort", versions=frozenset())
        return _responses(
            [none if each.answer.cancelled() else self._checked(each) for each in in_flight]
        )

    def answers(self, places: Sequence[int]) -> Responses:
        """Return the responses of completed requests, as `RolloutEngine.answers`."""
        return _responses([self._checked(self.in_flight[place]) for place in places])

    def _send(self, requests: Sequence[Request]) -> None:
        for request in requests:
            name = next(self.names)
            answer = self.threads.submit(self._answer, request, name)
            self.in_flight.append(_InFlight(request, name, answer))

    def _answer(self, request: Request, name: str) -> Answer:
        """Request a valid response. Runs in a separate thread."""
        assert self.sampling is not None, "generation has started"
        sampling = self.sampling
        answer = self.server.generate(request, sampling, name, self.answer_seconds)
        count = len(answer.token_ids)
        if len(answer.logprobs) != (0 if sampling.is_greedy else count):
            what = f"{len(answer.logprobs)} log-probs of {count} tokens"
        else:
            what = response_error(
                _responses([answer]),
                [sampling.section.max_tokens - request.drawn],
                self.vocabulary,
                are_complete=answer.ending != "abort",
            )
        if what:
            raise self._garbage(what)
        return answer

    def _garbage(self, what: str) -> AnswerError:
        return AnswerError(f"{self.client.name} at {self.client.url}: invalid response: {what}")

    def _newly_completed(self) -> list[int]:
        """Return the indices of completed answers that were not returned before."""
        new = [
            place
            for place, each in enumerate(self.in_flight)
            if each.answer.done() and not each.is_returned
        ]
        for place in new:
            assert self.sampling is not None, "generation has started"
            answer = self._checked(self.in_flight[place])
            if answer.ending == "abort":
                raise WorkerDiedError(f"{self.client.name} aborted a request")
            if what := self.certain.add(answer.logprobs, self.sampling):
                raise self._garbage(what)
            self.in_flight[place].is_returned = True
        return new

    def _checked(self, in_flight: _InFlight) -> Answer:
        answer = in_flight.answer.result()
        if answer.token_ids and answer.versions != {str(self.version)}:
            versions = ", ".join(sorted(answer.versions)) or "without a version"
            raise WorkerDiedError(
                f"{self.client.name} uses weights {versions}, but {self.version} were sent: it was "
                "restarted, or another program sent it weights"
            )
        return answer


def _responses(answers: Sequence[Answer]) -> Responses:
    """Combine answers; greedy ones have no log-probs and get 0."""
    return Responses.of(
        token_ids=[each.token_ids for each in answers],
        logprobs=[each.logprobs or [0.0] * len(each.token_ids) for each in answers],
        finished=[each.ending == "stop" for each in answers],
    )
