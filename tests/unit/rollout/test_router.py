"""vllm-router itself before servers that draw nothing: who is asked, and what its end costs.

Before real servers: tests/e2e/test_served_run.py. Skipped where the extra `router` is not there.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from vllm_like_server import Engine, advance_to_the_end, listening, replica_at

from mindrl.config.generate import SamplingConfig
from mindrl.errors import WorkerDiedError
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.http.replica import HttpReplica
from mindrl.rollout.http.router import RoutedServer, VllmRouter
from mindrl.rollout.http.vllm_server import VllmServer

pytest.importorskip("vllm_router", reason="the extra `router` is not installed")
SAMPLING = Sampling(section=SamplingConfig(max_tokens=8), stop_token_ids=(1,))
Seen = list[tuple[str, str]]


@dataclass
class Routed:
    """Two servers behind a router, and the replicas that they are."""

    engines: list[Engine]
    seen: list[Seen]
    replicas: list[HttpReplica]
    router: VllmRouter

    def asked(self) -> list[int]:
        """Count the requests that each server has had."""
        return [sum(path == "/inference/v1/generate" for path, _ in seen) for seen in self.seen]

    def draw(self, number: int, count: int) -> None:
        """Have a replica answer prompts that have nothing in common."""
        replica = self.replicas[number]
        requests = [
            Request(token_ids=tuple(range(20 * row, 20 * row + 20)), drawn=0, seed=row)
            for row in range(count)
        ]
        replica.begin(requests, SAMPLING)
        advance_to_the_end(replica, count)
        replica.take()

    def process(self) -> psutil.Process:
        assert self.router.process is not None
        return psutil.Process(self.router.process.pid).children()[0]


@pytest.fixture
def routed(tmp_path: Path) -> Iterator[Routed]:
    with ExitStack() as stack:
        engines, seen = [Engine(version="7"), Engine(version="7")], list[Seen]([[], []])
        urls = [
            stack.enter_context(listening(*each, token="secret"))
            for each in zip(engines, seen, strict=True)
        ]
        router = VllmRouter(tmp_path / "router.log", "secret", 5)
        stack.callback(router.close)
        replicas = []
        for url in urls:
            replica = replica_at(url)
            own = replica.server
            assert isinstance(own, VllmServer)
            through = replace(own, client=replace(router.client))
            replica.server = RoutedServer(own=own, routed=through, router=router)
            replicas.append(replica)
        yield Routed(engines, seen, replicas, router)


def test_requests_go_to_all_servers_that_have_the_weights_and_to_no_other(routed: Routed) -> None:
    routed.replicas[0].receive_weights(7)
    routed.draw(0, 6)
    assert routed.asked() == [6, 0]
    routed.replicas[1].receive_weights(7)
    routed.draw(0, 8)
    first, second = routed.asked()
    assert first + second == 14
    assert second > 0
    # One that is given up, or takes weights, is not asked.
    routed.replicas[0].close()
    routed.draw(1, 6)
    assert routed.asked() == [first, second + 6]
    assert routed.router.servers() == [routed.replicas[1].client]


def test_a_server_whose_weights_did_not_come_is_not_asked(routed: Routed) -> None:
    for replica in routed.replicas:
        replica.receive_weights(7)
    routed.engines[1].transfer = "training rank 0 is gone"
    with pytest.raises(Exception, match="training rank 0 is gone"):
        routed.replicas[1].receive_weights(8)
    assert routed.router.servers() == [routed.replicas[0].client]


def test_requests_are_taken_back_from_whoever_has_them(routed: Routed) -> None:
    for replica, engine in zip(routed.replicas, routed.engines, strict=True):
        replica.receive_weights(7)
        engine.holds = True
    replica = routed.replicas[0]
    replica.round_seconds = 0.2
    replica.begin(
        [Request(token_ids=(row, 5, row), drawn=0, seed=row) for row in range(4)], SAMPLING
    )
    assert replica.advance(8, []) == []
    assert replica.take().lengths_B.tolist() == [2] * 4


def test_a_router_that_was_killed_is_started_anew_with_its_servers(routed: Routed) -> None:
    for replica in routed.replicas:
        replica.receive_weights(7)
    old = routed.process()
    os.kill(old.pid, signal.SIGKILL)
    psutil.wait_procs([old], timeout=20)
    with pytest.raises(WorkerDiedError, match="did not respond"):
        routed.draw(0, 1)
    fresh = replica_at(routed.replicas[0].client.url)
    fresh.server = routed.replicas[0].server
    routed.replicas[0] = fresh
    fresh.receive_weights(7)
    assert len(routed.router.servers()) == 2
    routed.draw(0, 4)


def test_a_router_ends_with_the_run(routed: Routed) -> None:
    assert routed.router.process is not None
    processes = [psutil.Process(routed.router.process.pid), routed.process()]
    began = time.monotonic()
    routed.router.close()
    assert not psutil.wait_procs(processes, timeout=20)[1]
    assert time.monotonic() - began < 20
