"""Replicas that come and go, as the trainer asks them; their workers are in this process.

What they compute is shown by whole runs in tests/e2e/test_apart_run.py.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any, cast

import pytest
import torch.distributed as dist

from mindrl.cluster.apart_engines import ApartEngines
from mindrl.cluster.replicas import Members, ReplicaFleet
from mindrl.cluster.worker_group import WorkerGroup
from mindrl.errors import ClusterError, ReshardError, WorkerDiedError
from mindrl.platform.rendezvous import CALLED_OFF, link_name


class Workers:
    """One worker that answers with its name and what it was given, until it is killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 1
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self.dies_in = ""
        self.is_dead = self.is_stopped = False
        self.meanwhile: Callable[[], None] = lambda: None

    def begin(
        self, method: str, arguments: Sequence[tuple[Any, ...]], answering: Collection[int] = ()
    ) -> "Asked":
        del answering
        self.asked.append((method, arguments[0]))
        self.is_dead = self.is_dead or method == self.dies_in
        return Asked(self, method, self.answer(method, arguments[0]))

    def call(self, *asked: Any, **more: Any) -> list[Any]:
        return self.begin(*asked, **more).wait()

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        return self.call(method, [arguments])

    def answer(self, method: str, given: tuple[Any, ...]) -> Any:
        return {"seconds/generate": 1.0} if method == "flush_metrics" else (self.name, *given)

    def methods(self, *names: str) -> list[tuple[str, tuple[Any, ...]]]:
        return [each for each in self.asked if each[0] in names]

    def lost(self) -> str | None:
        return f"{self.name} is gone" if self.is_dead else None

    def stop(self) -> None:
        self.is_stopped = True


class Asked:
    def __init__(self, workers: Workers, method: str, answer: Any) -> None:
        self.workers, self.method, self.answer = workers, method, answer

    def wait(self, *, silence_counts: bool = True) -> list[Any]:
        # Those who send wait for replicas, which may be frozen.
        assert silence_counts == (self.method != "send_weights")
        self.workers.meanwhile()
        if self.workers.is_dead:
            raise WorkerDiedError(f"{self.workers.name} died")
        return [self.answer]


class Training(Workers):
    """The training side: it reports failed links by replica, and holds the store of the links."""

    def __init__(self) -> None:
        super().__init__("training")
        self.fails: dict[int, str] = {}
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True)  # type: ignore[attr-defined]
        self.address = ("127.0.0.1", self.store.port)

    def answer(self, method: str, given: tuple[Any, ...]) -> Any:
        if method == "link_address":
            return self.address
        if method == "send_weights":
            return {each: self.fails[each] for each in given[0] if each in self.fails}
        return None


class Run:
    """A run with two replicas: `started` has the workers of each number, the newest last."""

    def __init__(self, *, restarts: int = 3) -> None:
        self.started: dict[int, list[Workers]] = {0: [], 1: []}
        self.may_start = Event()
        self.may_start.set()
        self.told: list[str] = []
        self.fleet = self.fleet_of(restarts)
        self.training = Training()

    def fleet_of(self, restarts: int) -> ReplicaFleet:
        return ReplicaFleet(self.start, 2, restarts, self.told.append)

    def start(self, number: int, check_interrupt: Callable[[], None]) -> WorkerGroup:
        while not self.may_start.wait(0.01):
            check_interrupt()
        workers = Workers(f"replica {number}.{len(self.started[number])}")
        self.started[number].append(workers)
        return cast("WorkerGroup", workers)

    def lose(self, number: int) -> None:
        self.started[number][-1].is_dead = True


@contextmanager
def begun(run: Run | None = None, **given: Any) -> Iterator[tuple[Run, ApartEngines]]:
    run = run or Run(**given)
    try:
        run.fleet.wait_for_start()
        yield run, ApartEngines(cast("WorkerGroup", run.training), run.fleet)
    finally:
        run.fleet.stop()


def test_weights_go_once_to_each_replica_over_a_link_that_is_made_once() -> None:
    with begun() as (run, engines):
        for version in (0, 0, 1):
            assert engines.publish(version) == ()
        for number in (0, 1):
            (workers,) = run.started[number]
            assert workers.methods("join_link", "receive_weights") == [
                ("join_link", (run.training.address, number, number + 1)),
                ("receive_weights", (0,)),
                ("receive_weights", (1,)),
            ]
        assert run.training.methods("open_link", "send_weights") == [
            *[("open_link", (number, number + 1)) for number in (0, 1)],
            *[("send_weights", ([0, 1],))] * 2,
        ]
        assert [each.number for each in engines.living()] == [0, 1]


def test_what_a_lost_replica_was_asked_is_asked_of_the_other() -> None:
    with begun() as (run, engines):
        engines.publish(0)
        run.may_start.clear()
        run.lose(0)
        assert engines.each("generate", [("a",), ("b",)]) == [
            ("replica 1.0", "a"),
            ("replica 1.0", "b"),
        ]
        assert run.told == ["warning: rollout replica 0 is lost: replica 0.0 died"]
        assert run.started[0][0].is_stopped or run.fleet.coming
        assert [each.number for each in engines.living()] == [1]
        # Of the lost there is nothing, and the numbers of the ranks stay.
        assert engines.flush_metrics() == [{}, {"seconds/generate": 1.0}]


def test_a_new_replica_has_a_link_and_weights_before_anything_else() -> None:
    with begun() as (run, engines):
        engines.publish(0)
        run.lose(0)
        engines.each("generate", [("a",), ("b",)])
        run.fleet.take_up(10.0)
        assert [each.number for each in engines.living()] == [1]
        assert engines.publish(1) == ()
        assert [each.number for each in engines.living()] == [0, 1]
        (_, new), (old,) = run.started[0], run.started[1]
        link = ("join_link", (run.training.address, 0, 3))
        assert new.asked == [("memory_plan", ()), link, ("receive_weights", (1,))]
        assert old.asked[-1] == ("receive_weights", (1,))


def test_where_all_are_lost_the_next_one_that_comes_up_answers() -> None:
    with begun() as (run, engines):
        engines.publish(5)
        run.lose(0)
        run.lose(1)
        answers = engines.each("generate", [("a",), ("b",)])
        assert [given for _, given in answers] == ["a", "b"]
        assert {name for name, _ in answers} <= {"replica 0.1", "replica 1.1"}
        new = [workers for each in run.started.values() for workers in each[1:]]
        assert all(
            each.methods("receive_weights") in ([], [("receive_weights", (5,))]) for each in new
        )


@pytest.mark.parametrize("method", ["memory_plan", "join_link", "receive_weights"])
def test_a_replica_that_is_lost_on_the_way_to_its_weights_takes_no_other_along(method: str) -> None:
    with begun() as (run, engines):
        run.started[1][0].dies_in = method
        assert engines.publish(0) == (1,)
        assert [each.number for each in engines.living()] == [0]
        # A link is called off only if its replica is lost while it joins it.
        link = dist.PrefixStore(link_name(1, 2), run.training.store)  # type: ignore[attr-defined]
        assert link.check([CALLED_OFF]) == (method == "join_link")


def test_a_transfer_that_fails_on_the_side_that_sends_is_the_loss_of_its_replica() -> None:
    with begun() as (run, engines):
        run.training.fails = {0: "rank 2 is silent"}
        assert engines.publish(0) == (0,)
        assert run.told == ["warning: rollout replica 0 is lost: rank 2 is silent"]


def test_replicas_that_are_lost_too_often_in_a_row_are_given_up_and_the_last_ends_the_run() -> None:
    with begun(restarts=1) as (run, engines):
        engines.publish(0)
        run.lose(1)
        engines.begin_replacing(1, "it ended")
        engines.begin_replacing(1, "it ended")
        run.fleet.take_up(10.0)
        assert len(run.started[1]) == 2
        run.lose(1)
        engines.begin_replacing(1, "it ended")
        assert run.told[-1].startswith("warning: rollout replica 1 is not restarted: ")
        engines.publish(1)
        # It has lived from one publishing to the next: losses before that do not count.
        run.lose(0)
        engines.begin_replacing(0, "it ended")
        run.fleet.take_up(10.0)
        run.lose(0)
        with pytest.raises(ClusterError, match=r"^all 2 rollout replica\(s\) were lost"):
            engines.begin_replacing(0, "it ended")


def test_a_replica_that_ends_while_nobody_waits_for_it_is_replaced_at_once() -> None:
    with begun() as (run, engines):
        engines.publish(0)
        run.lose(1)
        engines.look()
        assert run.told == ["warning: rollout replica 1 is lost: replica 1.0 is gone"]
        run.fleet.take_up(10.0)
        assert len(run.started[1]) == 2
        # It is not looked again and again.
        run.lose(0)
        engines.look()
        assert len(run.told) == 2
        assert run.told[-1] == "rollout replica 1 is running again"


@pytest.mark.parametrize("waits_in", ["generate", "join_link"])
def test_a_death_on_the_training_side_ends_the_wait_for_replicas_and_is_no_loss_of_theirs(
    waits_in: str,
) -> None:
    with begun() as (run, engines):
        if waits_in == "generate":
            engines.publish(0)
        run.training.is_dead = True
        with pytest.raises(WorkerDiedError, match=r"^training is gone$"):
            engines.each("generate", [("a",)]) if waits_in == "generate" else engines.publish(0)
        assert not run.told


def test_an_error_of_the_training_side_is_the_runs() -> None:
    with begun() as (run, engines):
        run.training.dies_in = "send_weights"
        with pytest.raises(WorkerDiedError, match=r"^training died$"):
            engines.publish(0)


def test_a_first_start_that_fails_is_the_runs_too() -> None:
    def start(number: int, _: Callable[[], None]) -> WorkerGroup:
        raise ReshardError(f"replica {number} has no model")

    fleet = ReplicaFleet(start, 1, 3, lambda _: None)
    with pytest.raises(ReshardError, match=r"^replica 0 has no model$"):
        fleet.wait_for_start()
    fleet.stop()


def test_replicas_that_still_start_end_with_the_run() -> None:
    with begun() as (run, engines):
        engines.publish(0)
        run.may_start.clear()
        engines.begin_replacing(0, "it ended")
    assert len(run.started[0]) == 1
    assert run.started[1][0].is_stopped


class ElasticRun(Run):
    """A run with up to two replicas, of which only the first is there at the start."""

    def __init__(self) -> None:
        self.there, self.left = Event(), set[int]()
        super().__init__()

    def fleet_of(self, restarts: int) -> ReplicaFleet:
        members = Members(at_start=1, start_seconds=10.0, has_left=self.left.__contains__)
        return ReplicaFleet(self.start, 2, restarts, self.told.append, members)

    def start(self, number: int, check_interrupt: Callable[[], None]) -> WorkerGroup:
        self.left.discard(number)
        while number and not self.there.wait(0.01):
            check_interrupt()
        return super().start(number, check_interrupt)


def test_a_replica_joins_at_the_next_weights_and_one_that_leaves_is_asked_nothing_more() -> None:
    with begun(ElasticRun()) as (run, engines):
        assert isinstance(run, ElasticRun)
        engines.publish(0)
        assert [each.number for each in engines.living()] == [0]
        run.there.set()
        while not run.fleet.coming[1].done():
            pass
        engines.publish(1)
        assert [each.number for each in engines.living()] == [0, 1]
        assert run.told == ["rollout replica 1 is running"]
        run.may_start.clear()
        run.left.add(0)
        # It answers until the next weights.
        answers = engines.each("generate", [("a",), ("b",)])
        assert answers == [("replica 0.0", "a"), ("replica 1.0", "b")]
        engines.publish(2)
        assert run.told[1:] == ["rollout replica 0 has left"]
        assert [each.number for each in engines.living()] == [1]
        assert engines.each("generate", [("a",)]) == [("replica 1.0", "a")]
        assert run.fleet.losses[0] == 0


def test_a_place_that_was_given_up_is_free_for_another_server() -> None:
    with begun(ElasticRun()) as (run, engines):
        assert isinstance(run, ElasticRun)
        run.there.set()
        while not run.fleet.coming[1].done():
            pass
        engines.publish(0)
        run.fleet.given_up.add(1)
        run.fleet.up.pop(1)
        run.left.add(1)
        engines.publish(1)
        run.fleet.take_up(10.0)
        engines.publish(2)
        assert [each.number for each in engines.living()] == [0, 1]
        assert len(run.started[1]) == 2


def test_a_run_whose_last_server_leaves_waits_for_another() -> None:
    with begun(ElasticRun()) as (run, engines):
        assert isinstance(run, ElasticRun)
        engines.publish(0)
        run.left.add(0)
        engines.publish(1)
        assert run.told[:2] == [
            "rollout replica 0 has left",
            "warning: no rollout replica is left; the run waits for one",
        ]
        assert engines.each("generate", [("a",)]) == [("replica 0.1", "a")]


def test_a_run_that_no_server_joins_ends_in_time() -> None:
    def start(_: int, check_interrupt: Callable[[], None]) -> WorkerGroup:
        while True:
            check_interrupt()

    members = Members(at_start=1, start_seconds=0.1, has_left=lambda _: False)
    fleet = ReplicaFleet(start, 2, 3, lambda _: None, members)
    with pytest.raises(ClusterError, match=r"^no rollout replica started within 0.1 s$"):
        fleet.wait_for_start()
    fleet.stop()
