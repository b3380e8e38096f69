"""A rollout replica that is vLLM's own server, by its token route and its control routes.

Read in vLLM 0.32, and run with it. Each request is sent until it is answered; the first answer to
it counts. An answer that was not drawn with the weights of the last publish is refused: a server
that began anew has others.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import uuid4

from mindrl.batch.rollouts import Responses
from mindrl.errors import ReshardError, WorkerDiedError
from mindrl.observability.progress import tick
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.http.client import ServerClient

_LOOK_SECONDS = 0.3
_ABORT_SECONDS = 0.5
"""Between two calls that take back requests: one may have been on its way to the server."""


@dataclass
class _Asked:
    """A request on its way."""

    request: Request
    name: str
    answer: Future[dict[str, Any]]
    is_told: bool = False
    """`advance` has said that it is whole."""


@dataclass(kw_only=True)
class HttpReplica:
    """A server as `RolloutWorker` is: weights first, then requests in rounds."""

    number: int
    client: ServerClient
    rows: int
    """Requests that the server has at a time."""
    answer_seconds: float
    """Longest wait for one response."""
    control_seconds: float
    """Longest wait for anything else, a transfer of the weights included."""
    round_seconds: float = 1.0
    """Longest round: the steps of a server are its own."""
    version: int | None = None
    """Of the weights; None where they mean nothing."""
    asked: list[_Asked] = field(default_factory=list)
    sampling: Sampling | None = None
    metrics: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        """Have a thread for each request that is under way."""
        self.threads = ThreadPoolExecutor(self.rows, thread_name_prefix=f"replica-{self.number}")
        self.names = (f"mindrl-{uuid4().hex[:12]}-{each}" for each in count())

    def wait_until_up(self, seconds: float, heed: Callable[[], None]) -> None:
        """Wait until the server answers; `heed` is called again and again meanwhile, and may raise.

        Raises:
            WorkerDiedError: It does not within so many seconds.
        """
        ends = time.monotonic() + seconds
        while not self.client.is_up():
            if time.monotonic() > ends:
                raise WorkerDiedError(
                    f"{self.client.name} at {self.client.url} did not come up within {seconds:g} s"
                )
            heed()
            time.sleep(_LOOK_SECONDS)

    def join_link(
        self, configuration: str, address: tuple[str, int], replica: int, generation: int
    ) -> None:
        """Let the server's ranks meet the training ranks, which `open_link`.

        `configuration` is the run's, as JSON.

        Raises:
            ReshardError: Names who did not come in time.
            WorkerDiedError: The server does not answer.
        """
        host, port = address
        given = [configuration, host, str(port), str(replica), str(generation)]
        self._of_all_ranks("mindrl_join", given)

    def receive_weights(self, version: int) -> None:
        """Let the server take the weights that the training ranks send.

        It draws nothing meanwhile. Requests of others go on with the new weights behind it, from
        the tokens that they have; where the transfer fails it stays paused.

        Raises:
            ReshardError: A peer is gone or silent, or what arrived is not what was sent.
            WorkerDiedError: The server does not answer.
        """
        assert not self.asked, "new weights come while requests are open"
        began = time.perf_counter()
        self.version = None
        self._control("/pause?mode=keep")
        self._of_all_ranks("mindrl_receive", [])
        self._control("/update_weight_version", {"new_version": str(version)})
        self._control("/reset_prefix_cache?reset_running_requests=true")
        self._control("/resume")
        self.version = version
        self.metrics["seconds/receive_weights"] += time.perf_counter() - began

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> Responses:
        """Answer each prompt once, in order, as `RolloutEngine.generate`; raises as the rounds."""
        given = zip(prompts, seeds, strict=True)
        self.begin([Request(token_ids=tuple(each), drawn=0, seed=s) for each, s in given], sampling)
        missing = len(prompts)
        while missing:
            missing -= len(self.advance(1, []))
        return self.take()

    def begin(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Take requests, as `RolloutEngine.begin`.

        Raises:
            ReshardError: There are no weights.
        """
        if self.version is None:
            raise ReshardError("this replica has no weights: none came, or the last did not arrive")
        assert not self.asked, "what was begun before has been taken"
        self.sampling = sampling
        self._ask(requests)

    def advance(self, steps: int, more: Sequence[Request]) -> list[int]:  # noqa: ARG002
        """Wait for a response, or for a round; returns the places of those that are now whole.

        Raises:
            WorkerDiedError: A request was not answered in time, or with other weights.
        """
        began = time.perf_counter()
        self._ask(more)
        ends = time.monotonic() + self.round_seconds
        while not (found := self._whole()) and time.monotonic() < ends:
            left = [each.answer for each in self.asked if not each.answer.done()]
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
        """Ask nothing any more; the server lives on."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def take(self) -> Responses:
        """Return what was drawn for each request, in order, whole or not; the server drops them.

        Raises:
            WorkerDiedError: The server does not answer, or has other weights.
        """
        ends = time.monotonic() + self.control_seconds
        for each in self.asked:
            each.answer.cancel()
        while left := [each for each in self.asked if not each.answer.done()]:
            if time.monotonic() > ends:
                raise WorkerDiedError(f"{self.client.name} takes {len(left)} requests not back")
            names = [f"generate-tokens-{each.name}" for each in left]
            self._control("/inference/v1/abort_requests", {"request_ids": names})
            wait([each.answer for each in left], timeout=_ABORT_SECONDS)
        asked, self.asked = self.asked, []
        return _responses(
            [{} if each.answer.cancelled() else self._checked(each) for each in asked]
        )

    def answers(self, places: Sequence[int]) -> Responses:
        """Return what was drawn for whole requests, as `RolloutEngine.answers`."""
        return _responses([self._checked(self.asked[place]) for place in places])

    def _ask(self, requests: Sequence[Request]) -> None:
        for request in requests:
            name = next(self.names)
            answer = self.threads.submit(self._answer, request, name)
            self.asked.append(_Asked(request, name, answer))

    def _answer(self, request: Request, name: str) -> dict[str, Any]:
        """Ask until there is an answer. In a thread of its own."""
        assert self.sampling is not None, "it has begun"
        body = {
            "request_id": name,
            "token_ids": list(request.token_ids),
            "sampling_params": _parameters(self.sampling, request),
        }
        path, seconds = "/inference/v1/generate", self.answer_seconds
        choice: dict[str, Any] = self.client.post(path, body, seconds=seconds, again=True)[
            "choices"
        ][0]
        return choice

    def _whole(self) -> list[int]:
        """Return the places of answers that nobody was told of."""
        new = [
            place
            for place, each in enumerate(self.asked)
            if each.answer.done() and not each.is_told
        ]
        for place in new:
            self._checked(self.asked[place])
            self.asked[place].is_told = True
        return new

    def _checked(self, asked: _Asked) -> dict[str, Any]:
        choice = asked.answer.result()
        versions = {span["version"] for span in choice.get("weight_versions") or ()}
        if versions - {str(self.version)}:
            raise WorkerDiedError(
                f"{self.client.name} answers with weights {', '.join(sorted(versions))}, and has "
                f"been given {self.version}: it began anew, or somebody else gave it others"
            )
        return choice

    def _control(self, path: str, body: Any = None) -> dict[str, Any]:
        return self.client.post(path, body, seconds=self.control_seconds)

    def _of_all_ranks(self, method: str, arguments: list[str]) -> None:
        said = self._control("/collective_rpc", {"method": method, "args": arguments})["results"]
        if failed := sorted({each for each in said if each}):
            raise ReshardError(f"{self.client.name}: {'; '.join(failed)}")


def _responses(choices: Sequence[dict[str, Any]]) -> Responses:
    return Responses.of(
        token_ids=[choice.get("token_ids") or [] for choice in choices],
        logprobs=[_logprobs(choice) for choice in choices],
        finished=[choice.get("finish_reason") == "stop" for choice in choices],
    )


def _parameters(sampling: Sampling, request: Request) -> dict[str, Any]:
    """Say how the rest of a response is drawn; as the engine in a worker is told."""
    section, greedy = sampling.section, sampling.is_greedy
    return {
        "temperature": 0.0 if greedy else section.temperature,
        "max_tokens": section.max_tokens - request.drawn,
        "top_p": section.top_p,
        "top_k": section.top_k,
        "min_p": section.min_p,
        "stop_token_ids": list(sampling.stop_token_ids),
        "seed": None if greedy or not sampling.is_seeded else request.seed,
        "logprobs": None if greedy else 0,
        "detokenize": False,
    }


def _logprobs(choice: dict[str, Any]) -> list[float]:
    """Return the log-prob of each token; 0 in a greedy response, which has none."""
    found = (choice.get("logprobs") or {}).get("content") or ()
    return [entry["logprob"] for entry in found] or [0.0] * len(choice.get("token_ids") or ())
