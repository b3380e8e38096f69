"""What a replica behind HTTP does when its server is slow, breaks off, or says something else.

The server here speaks vLLM's routes and draws nothing. A real one: tests/distributed.
"""

import socket
import time
from collections.abc import Iterator
from queue import Queue
from threading import Event

import pytest
from broken_server import Fault, breaking
from vllm_like_server import Engine, advance_to_the_end, listening, replica_at

from mindrl.cluster.server_group import ServerGroup
from mindrl.config.generate import SamplingConfig
from mindrl.errors import ReshardError, WorkerDiedError
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.http.replica import HttpReplica

SAMPLING = Sampling(section=SamplingConfig(max_tokens=8), stop_token_ids=(1,))
REQUESTS = [Request(token_ids=(5, 6, row), drawn=1, seed=row) for row in range(3)]


Seen = list[tuple[str, str]]


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def seen() -> Seen:
    """Paths that were asked for, and the token of each."""
    return []


@pytest.fixture
def replica(engine: Engine, seen: Seen) -> Iterator[HttpReplica]:
    """A replica whose weights are of version 4, behind a server that answers as the engine says."""
    with listening(engine, seen) as url:
        yield replica_at(url)


def test_a_request_that_breaks_off_is_asked_again_and_each_sample_has_one_answer(
    engine: Engine, replica: HttpReplica, seen: Seen
) -> None:
    engine.breaks = 1
    replica.begin(REQUESTS, SAMPLING)
    assert advance_to_the_end(replica, 3) == [0, 1, 2]
    found = replica.take()
    assert sorted(engine.asked.values()) == [2, 2, 2]
    # In the order of the requests, whoever was answered first.
    assert found.token_ids_N.tolist() == [40, 40, 1, 41, 41, 1, 42, 42, 1]
    assert found.logprobs_N.tolist() == [-0.5] * 9
    assert found.lengths_B.tolist() == [3, 3, 3]
    assert found.finished_B.tolist() == [True] * 3
    assert {token for _, token in seen} == {"Bearer secret"}


def test_a_server_that_breaks_off_three_times_is_lost(engine: Engine, replica: HttpReplica) -> None:
    engine.breaks = 3
    replica.begin(REQUESTS[:1], SAMPLING)
    with pytest.raises(WorkerDiedError, match=r"^replica 2 at http://.* did not respond to /infer"):
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


def test_closing_a_replica_ends_its_open_requests_and_repeats_none() -> None:
    asked, left = Queue[int](), Queue[bytes]()

    def wait(connection: socket.socket, status: int, over: Event) -> None:
        del over
        asked.put(status)
        left.put(connection.recv(1))

    with breaking(Fault(wait)) as url:
        replica = replica_at(url)
        replica.begin(REQUESTS, SAMPLING)
        assert [asked.get() for _ in REQUESTS] == [200] * 3
        replica.close()
        # The server reads the end of each connection, upon which an engine drops the request.
        assert [left.get() for _ in REQUESTS] == [b""] * 3
        replica.threads.shutdown()
        for each in replica.in_flight:
            assert isinstance(each.answer.exception(), WorkerDiedError)
        assert asked.empty()
        with pytest.raises(WorkerDiedError, match="the client is closed"):
            replica.server.take_back(["another"])


def test_an_answer_of_other_weights_is_refused(engine: Engine, replica: HttpReplica) -> None:
    engine.version = "default"
    replica.begin(REQUESTS[:1], SAMPLING)
    with pytest.raises(WorkerDiedError, match="uses weights default, but 4 were sent"):
        advance_to_the_end(replica, 1)


def test_new_weights_come_while_the_server_is_paused(replica: HttpReplica, seen: Seen) -> None:
    replica.receive_weights(5)
    assert [path for path, _ in seen] == [
        "/pause?mode=keep",
        "/collective_rpc",
        "/update_weight_version",
        "/reset_prefix_cache?reset_running_requests=true",
        "/resume",
    ]
    assert replica.version == 5


def test_a_server_whose_weights_did_not_come_stays_paused_and_is_asked_nothing(
    engine: Engine, replica: HttpReplica, seen: Seen
) -> None:
    engine.transfer = "training rank 0 is gone"
    with pytest.raises(ReshardError, match="replica 2: training rank 0 is gone"):
        replica.receive_weights(5)
    assert [path for path, _ in seen] == ["/pause?mode=keep", "/collective_rpc"]
    with pytest.raises(ReshardError, match="has no weights"):
        replica.begin(REQUESTS, SAMPLING)


def test_a_server_is_called_as_the_workers_of_a_replica_are(
    engine: Engine, replica: HttpReplica
) -> None:
    looked: list[int] = []
    group = ServerGroup(replica, 5.0, lambda: looked.append(1))
    assert group.call_all("memory_plan") == [None]
    joining = group.begin("join_link", [(("10.0.0.1", 29500), 2, 7)])
    assert joining.wait() == [None]
    given = ["the configuration", "10.0.0.1", "29500", "2", "7"]
    assert engine.calls == [("mindrl_join", given)]
    group.call_all("receive_weights", 4)
    prompts, seeds = [[5], [6, 7]], [1, 2]
    (found,) = group.call("generate_sequences", [(prompts, SAMPLING, seeds)], answering=(0,))
    assert found.token_ids_N.tolist() == [41, 41, 1, 42, 42, 1]
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
    replica = replica_at("http://127.0.0.1:1")
    looked: list[int] = []
    with pytest.raises(WorkerDiedError, match=r"replica 2 at .* did not start within 0.5 s"):
        ServerGroup(replica, 0.5, lambda: looked.append(1))
    assert looked
