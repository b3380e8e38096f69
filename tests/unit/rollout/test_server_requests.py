"""What a replica behind HTTP does when its server is slow, breaks off, or says something else.

The server here speaks vLLM's routes and draws nothing. A real one: tests/distributed.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mindrl.cluster.server_group import ServerGroup
from mindrl.config.generate import SamplingConfig
from mindrl.errors import ReshardError, WorkerDiedError
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.http.replica import HttpReplica

SAMPLING = Sampling(section=SamplingConfig(max_tokens=8), stop_token_ids=(1,))
REQUESTS = [Request(token_ids=(5, 6, row), drawn=1, seed=row) for row in range(3)]


@dataclass
class Engine:
    """What the server says and does."""

    version: str = "4"
    breaks: int = 0
    """Connections of each request that end without an answer."""
    holds: bool = False
    """Answers wait until their requests are taken back."""
    refuses: bool = False
    transfer: str = ""
    """What a rank says of one."""
    paths: list[str] = field(default_factory=list)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)
    """Of methods of its workers."""
    tokens: set[str] = field(default_factory=set)
    asked: Counter[str] = field(default_factory=Counter)
    aborted: set[str] = field(default_factory=set)
    told: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        """Return status and answer; None breaks the connection off."""
        match path.partition("?")[0]:
            case "/inference/v1/generate":
                return self.drawn(body)
            case "/inference/v1/abort_requests":
                self.aborted |= set(body["request_ids"])
                self.told.set()
                return 200, {}
            case "/collective_rpc":
                self.calls.append((body["method"], body["args"]))
                return 200, {"results": [self.transfer]}
        return 200, {}

    def drawn(self, body: dict[str, Any]) -> tuple[int, Any] | None:
        name = body["request_id"]
        self.asked[name] += 1
        if self.refuses:
            return 400, {"error": "too long"}
        if self.asked[name] <= self.breaks:
            return None
        if self.holds:
            while f"generate-tokens-{name}" not in self.aborted:
                self.told.wait(0.05)
        seed = body["sampling_params"]["seed"]
        token_ids = [40 + seed] * (2 if self.holds else 3)
        choice = {
            "token_ids": token_ids,
            "logprobs": {"content": [{"token_id": each, "logprob": -0.5} for each in token_ids]},
            "finish_reason": "abort" if self.holds else "stop",
            "weight_versions": [{"version": self.version, "start": 0, "end": len(token_ids)}],
        }
        return 200, {"choices": [choice]}


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def replica(engine: Engine) -> Iterator[HttpReplica]:
    """A replica whose weights are of version 4, behind a server that answers as the engine says."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def do_POST(self) -> None:
            engine.paths.append(self.path)
            engine.tokens.add(self.headers["Authorization"])
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            said = engine.answer(self.path, json.loads(body) if body else {})
            if said is None:
                self.close_connection = True
                return
            text = json.dumps(said[1]).encode()
            self.send_response(said[0])
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            # Whoever asked may have waited long enough.
            with suppress(BrokenPipeError):
                self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    client = ServerClient(url=url, token="secret", name="replica 2")
    yield HttpReplica(
        number=2, client=client, rows=4, answer_seconds=5, control_seconds=5, version=4
    )
    server.shutdown()
    server.server_close()
    thread.join()


def advance_to_the_end(replica: HttpReplica, count: int) -> list[int]:
    whole: list[int] = []
    while len(whole) < count:
        whole += replica.advance(8, [])
    return sorted(whole)


def test_a_request_that_breaks_off_is_asked_again_and_each_sample_has_one_answer(
    engine: Engine, replica: HttpReplica
) -> None:
    engine.breaks = 1
    replica.begin(REQUESTS, SAMPLING)
    assert advance_to_the_end(replica, 3) == [0, 1, 2]
    found = replica.take()
    assert sorted(engine.asked.values()) == [2, 2, 2]
    # In the order of the requests, whoever was answered first.
    assert found.token_ids_N.tolist() == [40, 40, 40, 41, 41, 41, 42, 42, 42]
    assert found.logprobs_N.tolist() == [-0.5] * 9
    assert found.lengths_B.tolist() == [3, 3, 3]
    assert found.finished_B.tolist() == [True] * 3
    assert engine.tokens == {"Bearer secret"}


def test_a_server_that_breaks_off_three_times_is_lost(engine: Engine, replica: HttpReplica) -> None:
    engine.breaks = 3
    replica.begin(REQUESTS[:1], SAMPLING)
    with pytest.raises(WorkerDiedError, match=r"^replica 2 at http://.* gave no answer to /infer"):
        advance_to_the_end(replica, 1)
    assert [*engine.asked.values()] == [3]


def test_a_request_that_is_not_answered_in_time_loses_the_server(
    engine: Engine, replica: HttpReplica
) -> None:
    engine.holds, replica.answer_seconds = True, 0.2
    replica.begin(REQUESTS[:1], SAMPLING)
    began = time.monotonic()
    with pytest.raises(WorkerDiedError, match="timed out"):
        advance_to_the_end(replica, 1)
    assert 0.6 < time.monotonic() - began < 5
    engine.aborted |= {f"generate-tokens-{name}" for name in engine.asked}


def test_what_a_server_refuses_is_not_asked_again(engine: Engine, replica: HttpReplica) -> None:
    engine.refuses = True
    replica.begin(REQUESTS[:1], SAMPLING)
    with pytest.raises(WorkerDiedError, match=r"HTTP 400 .*too long"):
        advance_to_the_end(replica, 1)
    assert [*engine.asked.values()] == [1]


def test_requests_are_taken_back_with_the_tokens_that_they_have(
    engine: Engine, replica: HttpReplica
) -> None:
    engine.holds, replica.round_seconds = True, 0.1
    replica.begin(REQUESTS, SAMPLING)
    assert replica.advance(8, []) == []
    found = replica.take()
    assert found.token_ids_N.tolist() == [40, 40, 41, 41, 42, 42]
    assert found.finished_B.tolist() == [False] * 3
    # Nothing is left of them.
    engine.holds = False
    replica.begin(REQUESTS[:1], SAMPLING)
    assert advance_to_the_end(replica, 1) == [0]


def test_an_answer_of_other_weights_is_refused(engine: Engine, replica: HttpReplica) -> None:
    engine.version = "default"
    replica.begin(REQUESTS[:1], SAMPLING)
    with pytest.raises(WorkerDiedError, match="answers with weights default, and has been given 4"):
        advance_to_the_end(replica, 1)


def test_new_weights_come_while_the_server_is_paused(engine: Engine, replica: HttpReplica) -> None:
    replica.receive_weights(5)
    assert engine.paths == [
        "/pause?mode=keep",
        "/collective_rpc",
        "/update_weight_version",
        "/reset_prefix_cache?reset_running_requests=true",
        "/resume",
    ]
    assert replica.version == 5


def test_a_server_whose_weights_did_not_come_stays_paused_and_is_asked_nothing(
    engine: Engine, replica: HttpReplica
) -> None:
    engine.transfer = "training rank 0 is gone"
    with pytest.raises(ReshardError, match="replica 2: training rank 0 is gone"):
        replica.receive_weights(5)
    assert engine.paths == ["/pause?mode=keep", "/collective_rpc"]
    with pytest.raises(ReshardError, match="has no weights"):
        replica.begin(REQUESTS, SAMPLING)


def test_a_server_is_called_as_the_workers_of_a_replica_are(
    engine: Engine, replica: HttpReplica
) -> None:
    looked: list[int] = []
    group = ServerGroup(replica, "the configuration", 5.0, lambda: looked.append(1))
    assert group.call_all("memory_plan") == [None]
    joining = group.begin("join_link", [(("10.0.0.1", 29500), 2, 7)])
    assert joining.wait() == [None]
    assert joining.is_done()
    given = ["the configuration", "10.0.0.1", "29500", "2", "7"]
    assert engine.calls == [("mindrl_join", given)]
    group.call_all("receive_weights", 4)
    prompts, seeds = [[5], [6, 7]], [1, 2]
    (found,) = group.call("generate_sequences", [(prompts, SAMPLING, seeds)], answering=(0,))
    assert found.token_ids_N.tolist() == [41, 41, 41, 42, 42, 42]
    assert group.call_all("flush_metrics")[0].keys() == {
        "seconds/receive_weights",
        "seconds/generate",
    }
    # What takes long is waited for, and what the caller does meanwhile is done.
    engine.holds, replica.answer_seconds, before = True, 0.4, len(looked)
    with pytest.raises(WorkerDiedError, match="replica 2"):
        group.call("generate_sequences", [(prompts[:1], SAMPLING, seeds[:1])])
    assert len(looked) > before
    engine.aborted |= {f"generate-tokens-{name}" for name in engine.asked}
    group.stop()


def test_a_server_that_does_not_come_up_is_given_up_within_the_limit() -> None:
    client = ServerClient(url="http://127.0.0.1:1", token="secret", name="replica 0")
    replica = HttpReplica(number=0, client=client, rows=1, answer_seconds=1, control_seconds=1)
    looked: list[int] = []
    with pytest.raises(WorkerDiedError, match=r"replica 0 at .* did not come up within 0.5 s"):
        ServerGroup(replica, "", 0.5, lambda: looked.append(1))
    assert looked
