"""Rollout on separate devices, as used by the trainer: weights first, then prompts."""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from mindrl.cluster.replicas import ReplicaFleet, ReplicaGroup
from mindrl.cluster.worker_group import WorkerGroup
from mindrl.errors import ReshardError, WorkerDiedError
from mindrl.platform.rendezvous import call_off, link_name
from mindrl.workers.calls import Pending

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5
_WATCH_SECONDS = 1.0
"""Interval between checks of the processes."""
_CALL_OFF_WITHIN = timedelta(seconds=20)
_LOST = (WorkerDiedError, ReshardError)


class ApartEngines:
    """Replicas that receive weights from a training group, each over its own link."""

    def __init__(self, training: WorkerGroup, fleet: ReplicaFleet) -> None:
        """Set the training group, and replicas that have all started."""
        self.training, self.fleet = training, fleet
        self.version: int | None = None
        """Version of the last published weights."""
        self.address: tuple[str, int] = training.call_all("link_address")[0]
        self.generation = 0
        """Generation of the newest link; older links cannot be joined with newer ones."""
        self.linked: dict[int, ReplicaGroup] = {}
        self.looked = {"training": 0.0, "replicas": 0.0}
        """Time of the last check that all processes run."""

    @property
    def replicas(self) -> int:
        """Number of replicas, including lost ones."""
        return self.fleet.count

    def living(self) -> list[ReplicaGroup]:
        """Return the replicas with the weights of the last `publish`, by number."""
        found = sorted(self.fleet.up.items())
        return [each for _, each in found if None is not each.version == self.version]

    def publish(self, version: int) -> Collection[int]:
        """Send the training group's weights to all started replicas that lack them.

        Called while no requests are open. Replicas lost during this are replaced, and those that
        have left are no longer used.

        Returns:
            Numbers of the lost replicas.

        Raises:
            ClusterError: No replica is left, and none will start.
        """
        self.fleet.dismiss()
        self.fleet.take_up()
        self.version = version
        due = [each for each in self.fleet.up.values() if each.version != version]
        if not due:
            return ()
        began, lost = time.perf_counter(), dict[int, str]()
        for each in due:
            if self.linked.get(each.number) is not each:
                lost |= self._link(each)
        lost |= self._send([each for each in due if each.number not in lost], version)
        for number, why in lost.items():
            self._replace(number, why)
        seconds = time.perf_counter() - began
        logger.info("sent version %d to %d replica(s) in %.3f s", version, len(due), seconds)
        self.fleet.require_some()
        return tuple(lost)

    def begin_replacing(self, number: int, why: str) -> None:
        """Start a replacement of a lost replica in the background, unless one is starting."""
        self._replace(number, why)
        self.fleet.require_some()

    def look(self) -> None:
        """Replace replicas with ended or stopped processes, even if they have no calls.

        Raises:
            ClusterError: No replica is left, and none will start.
        """
        if not self._is_time("replicas"):
            return
        for number, each in [*self.fleet.up.items()]:
            if (why := each.group.lost()) is not None:
                self._replace(number, why)
        self.fleet.require_some()

    def check_training(self) -> None:
        """Check the training processes while replicas are waited for.

        Raises:
            WorkerDiedError: A training process has ended.
            ClusterError: As in `look`.
        """
        if self._is_time("training"):
            self.training.meanwhile()
            self._require_training()

    def each(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method with each share; shares of a lost replica are sent to the others.

        Raises:
            WorkerDiedError: A training process has ended.
            ClusterError: No replica is left, and none will start.
        """
        answers: dict[int, Any] = {}
        while missing := [place for place in range(len(shares)) if place not in answers]:
            living = self._some()
            asked = [(place, living[turn % len(living)]) for turn, place in enumerate(missing)]
            calls = [(place, each, _begin(each, method, shares[place])) for place, each in asked]
            for place, each, call in calls:
                each.group.meanwhile = self.check_training
                try:
                    answers[place] = call.wait()[0]
                except WorkerDiedError as error:
                    self._require_training()
                    self._replace(each.number, str(error))
                finally:
                    each.group.meanwhile = lambda: None
        return [answers[place] for place in range(len(shares))]

    def take_routes(self) -> list[Any]:
        """Return a reference to the routes of ended requests of each replica that is not lost."""
        found = []
        for each in self.living():
            # The next call replaces it.
            with suppress(WorkerDiedError):
                found.append(each.take_routes())
        return found

    def flush_metrics(self) -> list[dict[str, float]]:
        """Return each rank's metrics since the last call; empty for lost replicas."""
        found: list[dict[str, float]] = []
        ranks = max((each.group.size for each in self.fleet.up.values()), default=0)
        for number in range(self.fleet.count):
            try:
                found += self.fleet.up[number].group.call_all("flush_metrics")
            except (KeyError, WorkerDiedError):
                found += [{}] * ranks
        return found

    def stop(self) -> None:
        """End all replicas."""
        self.fleet.stop()

    def _some(self) -> list[ReplicaGroup]:
        """Return the living replicas; if all are lost, wait for one."""
        while not (living := self.living()):
            assert self.version is not None, "weights are published before the first request"
            self.fleet.take_up(_LOOK_SECONDS)
            self.check_training()
            self.publish(self.version)
        return living

    def _link(self, replica: ReplicaGroup) -> dict[int, str]:
        """Join a link on both sides; return the failure, if any."""
        number = replica.number
        self.generation += 1
        try:
            # Check that the replica lives: otherwise the link would wait for it.
            replica.group.call("memory_plan", [()] * replica.group.size, answering=())
        except WorkerDiedError as error:
            return {number: str(error)}
        given = (self.address, number, self.generation)
        joining = replica.group.begin("join_link", [given] * replica.group.size)
        opening = self.training.begin("open_link", [given[1:]] * self.training.size)
        replica.group.meanwhile = self._require_training
        lost = _failures({number: joining})
        replica.group.meanwhile = lambda: None
        self._require_training()
        if lost:
            name = link_name(number, self.generation)
            # If the store is gone, the training side has ended and does not wait.
            with suppress(RuntimeError):
                call_off(self.address, name, lost[number], _CALL_OFF_WITHIN)
        said = opening.wait()
        if lost:
            return lost
        if missed := [why for why in said if why is not None]:
            return {number: missed[0]}
        self.linked[number] = replica
        return {}

    def _send(self, due: Sequence[ReplicaGroup], version: int) -> dict[int, str]:
        """Send weights to replicas; return the failures by number."""
        numbers = [each.number for each in due]
        if not numbers:
            return {}
        receiving = {each.number: _begin(each, "receive_weights", (version,)) for each in due}
        sending = self.training.begin("send_weights", [(numbers,)] * self.training.size)
        # Ranks that wait for a frozen replica do not count as hung.
        lost: dict[int, str] = sending.wait(silence_counts=False)[0]
        lost |= _failures({number: receiving[number] for number in numbers if number not in lost})
        for each in due:
            if each.number in lost:
                continue
            if each.version is not None:
                self.fleet.losses[each.number] = 0
            each.version = version
        return lost

    def _is_time(self, what: str) -> bool:
        now = time.monotonic()
        if now - self.looked[what] < _WATCH_SECONDS:
            return False
        self.looked[what] = now
        return True

    def _require_training(self) -> None:
        if (why := self.training.lost()) is not None:
            raise WorkerDiedError(why)

    def _replace(self, number: int, why: str) -> None:
        # A replacement does not help if Ray or a training process is lost.
        self._require_training()
        self.linked.pop(number, None)
        self.fleet.replace(number, why)


def _begin(replica: ReplicaGroup, method: str, given: tuple[Any, ...]) -> Pending:
    return replica.group.begin(method, [given] * replica.group.size, answering=(0,))


def _failures(calls: Mapping[int, Pending]) -> dict[int, str]:
    """Wait for calls; return the failures by number."""
    found = {}
    for number, call in calls.items():
        try:
            call.wait()
        except _LOST as error:
            found[number] = str(error)
    return found
