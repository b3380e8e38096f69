"""A server whose answers break off, stall or drip: a loss in time, for every status."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import broken_server
import pytest
from broken_server import Fault, breaking

from mindrl.errors import WorkerDiedError
from mindrl.rollout.http import client as client_module
from mindrl.rollout.http.client import ServerClient

LIMIT_SECONDS = 0.8
LATE_SECONDS = 4.0
"""Beyond the limits of all tries and their pauses: threads of a busy machine."""
OF_THE_TEXT = (
    broken_server.reset,
    broken_server.cut,
    broken_server.stall,
    broken_server.broken_chunk,
    broken_server.half_a_chunk,
    broken_server.drip_body,
    broken_server.drip_announced_body,
)
NO_ANSWER = (broken_server.drip_header, broken_server.no_http, broken_server.silence)
ENDLESS = (
    broken_server.stall,
    broken_server.drip_header,
    broken_server.drip_body,
    broken_server.drip_announced_body,
)
TRIES = 1 + len(client_module._PAUSES_SECONDS)


def _found(act: Callable[..., None], status: int) -> str:
    """Return what is wrong with how the client takes a fault; empty where nothing is."""
    fault = Fault(act, status)
    refuses = status == 400 and act in OF_THE_TEXT
    with breaking(fault) as url:
        client = ServerClient(url=url, token="secret", name="replica 2")
        began, said = time.monotonic(), "an answer"
        try:
            client.post("/x", {"a": 1}, seconds=LIMIT_SECONDS, again=True)
        except WorkerDiedError as error:
            said = str(error)
        except Exception as error:  # noqa: BLE001 - that is the finding
            said = f"bare {error!r}"
        took = time.monotonic() - began
    tries = 1 if refuses else TRIES
    most = tries * LIMIT_SECONDS + sum(client_module._PAUSES_SECONDS) + LATE_SECONDS
    is_named = said.startswith(f"replica 2 at {url} did not respond to /x: ")
    of_status = "" if status == 200 or act in NO_ANSWER else f"HTTP {status}"
    of_time = f"within {LIMIT_SECONDS:g} s" if act in ENDLESS and not of_status else ""
    is_named = is_named and of_status in said and of_time in said
    if is_named and fault.asked == tries and took < most:
        return ""
    return f"{act.__name__} {status}: {fault.asked} of {tries} tries, {took:.1f} s, {said}"


def test_each_fault_is_a_loss_within_its_time_and_is_tried_again_unless_it_refuses() -> None:
    cases = [*product((*OF_THE_TEXT, *NO_ANSWER), (200, 400, 503))]
    with ThreadPoolExecutor(len(cases)) as pool:
        found = [*pool.map(_found, *zip(*cases, strict=True))]
    assert [each for each in found if each] == []


def test_a_server_that_drips_its_health_is_not_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_HEALTH_SECONDS", LIMIT_SECONDS)
    for act in (broken_server.drip_header, broken_server.reset, broken_server.broken_chunk):
        with breaking(Fault(act)) as url:
            client = ServerClient(url=url, token="secret", name="replica 2")
            began = time.monotonic()
            assert not client.is_up()
            assert time.monotonic() - began < LATE_SECONDS
