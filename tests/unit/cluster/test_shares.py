"""What a call of all workers sends and brings back; pickled here as Ray would."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import OwnerDiedError

from mindrl.batch.parcels import Parcel
from mindrl.cluster.call_limits import CallLimits
from mindrl.cluster.profiled_calls import ProfiledCalls
from mindrl.cluster.ray_calls import RayCalls
from mindrl.cluster.worker_group import WorkerGroup
from mindrl.cluster.worker_process import WorkerProcess
from mindrl.config.profiler import ProfilerConfig


class Worker:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def add(self, numbers: list[int]) -> int:
        return sum(numbers) + self.rank

    def pack(self, numbers: list[int]) -> Parcel:
        return Parcel(numbers)

    def add_packed(self, *parcels: Parcel | None) -> int:
        return sum(self.add(each.content) for each in parcels if each is not None)


class Reference:
    """To a result that is there."""

    def __init__(self, value: object) -> None:
        self.value = value


def handle(rank: int) -> Any:
    """A worker process that is called in place, with what lies in the object store."""
    process = object.__new__(WorkerProcess)
    process.worker = Worker(rank)
    process.profiles = ProfiledCalls(ProfilerConfig(), "cpu", rank, "worker", Path("run"))

    def remote(method: str, stored: bytes, **about: Any) -> object:
        return Reference(process.call(method, pickle.loads(stored), **about))

    return SimpleNamespace(call=SimpleNamespace(remote=remote))


@pytest.fixture
def group() -> WorkerGroup:
    made = object.__new__(WorkerGroup)
    made.name, made.handles = "worker", [handle(rank) for rank in range(4)]
    made.calls = RayCalls(600)
    made.limits, made.watch = CallLimits(first_seconds=60, least_seconds=60), None
    return made


@pytest.fixture
def pickled(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was put into the object store."""
    store: list[bytes] = []

    def put(value: object) -> bytes:
        store.append(pickle.dumps(value))
        return store[-1]

    monkeypatch.setattr(ray, "put", put)
    monkeypatch.setattr(ray, "wait", lambda waiting, **_: (waiting[:1], waiting[1:]))
    monkeypatch.setattr(ray, "get", lambda references: [each.value for each in references])
    return store


def test_a_share_is_pickled_once_for_the_two_ranks_of_its_replica(
    group: WorkerGroup, pickled: list[bytes]
) -> None:
    first, second = ([1, 2],), ([10, 20],)
    assert group.call("add", [first, first, second, second]) == [3, 4, 32, 33]
    assert [pickle.loads(each) for each in pickled] == [first, second]


def test_only_the_ranks_that_are_asked_send_their_results(
    group: WorkerGroup, pickled: list[bytes]
) -> None:
    assert group.call("add", [([5],)] * 4, (0, 2)) == [5, None, 7, None]
    assert group.call_all("add", [5]) == [5, 6, 7, 8]
    assert len(pickled) == 2


def test_ranks_from_the_third_on_are_called_alone_and_counted_from_there(
    group: WorkerGroup, pickled: list[bytes]
) -> None:
    call = group.begin("add", [([5],), ([50],)], (1,), first=2)
    assert call.wait() == [None, 53]
    assert len(pickled) == 2


def test_a_parcel_stays_in_the_store_until_the_worker_that_needs_it_opens_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store: dict[Any, Any] = {}

    def put(value: object) -> Any:
        store[reference := ray.ObjectRef.from_random()] = value
        return reference

    def get(reference: Any) -> Any:
        if reference not in store:
            raise OwnerDiedError(reference.hex(), None, "")
        return store[reference]

    monkeypatch.setattr(ray, "put", put)
    monkeypatch.setattr(ray, "get", get)
    process = object.__new__(WorkerProcess)
    process.worker = Worker(1)
    process.profiles = ProfiledCalls(ProfilerConfig(), "cpu", 1, "worker", Path("run"))

    def called(method: str, *given: Any) -> Any:
        return process.call(method, given, answers=True, step=None, traced=False).result

    first, second = called("pack", [1, 2]), called("pack", [30])
    assert store == {first: Parcel([1, 2]), second: Parcel([30])}
    assert called("add_packed", first, second) == 35
    # The process that packed it has ended.
    del store[second]
    assert called("add_packed", first, second) == 4
