"""Replicas that generate ahead of the trainer: started, stopped, updated and replaced."""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.observability.metrics import Metrics
from mindrl.observability.trace import span
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.dealt_groups import DealtGroups, DealtRow
from mindrl.trainer.engines import Replica, SeparateEngines
from mindrl.trainer.group_pool import OpenGroup
from mindrl.trainer.replica_threads import Drawn, Lost, Probed, ReplicaThread, is_loss
from mindrl.trainer.weight_probe import WeightProbe

_LOOK_SECONDS = 0.1
"""Interval between checks of whether the run was asked to stop."""


class ReplicaPool:
    """Lets all living replicas generate, and reassigns the requests of lost ones."""

    def __init__(
        self,
        engines: SeparateEngines,
        dealt: DealtGroups,
        *,
        request: Callable[[OpenGroup, int], Request],
        probe: Callable[[int], WeightProbe],
        sampling: Sampling,
        round_steps: int,
    ) -> None:
        """Set the parts; `probe` returns the probe of a version of the weights."""
        self.engines, self.dealt, self.request = engines, dealt, request
        self.probe, self.probed = probe, dict[int, Responses]()
        self.present: WeightProbe | None = None
        """Probe of the replicas' weights."""
        self.sampling, self.round_steps = sampling, round_steps
        self.version: int | None = None
        """Version of the replicas' weights."""
        self.events: SimpleQueue[Drawn | Probed | Lost] = SimpleQueue()
        self.threads: dict[int, ReplicaThread] = {}
        """Threads of the generating replicas, by number."""
        self.dead: set[int] = set()
        """Replicas lost since the last weights."""
        self._seconds = dict.fromkeys(("began", "waited", "publish", "pause", "busy"), 0.0)
        self._replicas = self._thrown_away = 0

    def open(self, version: int, check_interrupt: Callable[[], None]) -> None:
        """Start a step, with weights of this version on at least one replica."""
        self._seconds["began"] = time.perf_counter()
        if self.version != version:
            self.publish(version)
        self._require_living(check_interrupt)
        self._replicas = len(self._living())

    def draw(
        self, is_enough: Callable[[], bool], check_interrupt: Callable[[], None], version: int
    ) -> None:
        """Let the replicas generate until `is_enough`, with weights of a version."""
        assert self.version == version, "the replicas have the weights of the step"
        began = time.perf_counter()
        while not is_enough():
            self._require_living(check_interrupt)
            self.deal()
            self._hear(check_interrupt)
        self._seconds["waited"] += time.perf_counter() - began

    def deal(self) -> None:
        """Assign unassigned responses to the living replicas."""
        assert self.present is not None, "it is open"
        living, probe = self._living(), self.present
        for number, rows in self.dealt.deal(living.keys()).items():
            if number not in self.threads:
                self.threads[number] = ReplicaThread(
                    living[number], self.sampling, self.round_steps, self.events.put, probe=probe
                )
            self.threads[number].add([self._request(row) for row in rows])

    def take_probed(self, check_interrupt: Callable[[], None]) -> Rollouts | None:
        """Wait for the probes of all generating replicas; return their responses.

        None if no replica generates.
        """
        assert self.present is not None, "it is open"
        while self.threads.keys() - self.probed.keys():
            self._hear(check_interrupt)
        return self.present.rollouts(dict(sorted(self.probed.items())))

    def close(self, is_enough: Callable[[], bool]) -> None:
        """Stop all replicas when `is_enough`, or none is left; collect what they have generated."""
        began = time.perf_counter()
        while True:
            while not is_enough() and self._living():
                self.deal()
                self._hear(lambda: None)
            self._seconds["waited"] += time.perf_counter() - began
            began = time.perf_counter()
            with span("pause of the replicas"):
                for thread in self.threads.values():
                    thread.stop()
                while self.threads:
                    self._hear(lambda: None)
            self._seconds["pause"] += time.perf_counter() - began
            if is_enough() or not self._living():
                return

    def publish(self, version: int) -> None:
        """Publish new weights to the replicas, including replacements."""
        assert not self.threads, "they draw nothing while weights come"
        began = time.perf_counter()
        with span("publish"):
            self.engines.publish(version)
        if version != self.version:
            self.probed.clear()
            self.present = self.probe(version)
        self.version = version
        self.dead.clear()
        self._seconds["publish"] += time.perf_counter() - began

    def flush_metrics(self) -> Metrics:
        """Return how the finished step's time was divided between the two sides."""
        seconds, now = self._seconds, time.perf_counter()
        whole = now - seconds["began"]
        idle = seconds["waited"] + seconds["pause"] + seconds["publish"]
        metrics = {
            "seconds/publish": seconds["publish"],
            "seconds/rollout_pause": seconds["pause"] + seconds["publish"],
            "idle/training": min(1.0, idle / whole),
            "idle/rollout": max(0.0, 1 - seconds["busy"] / (whole * max(1, self._replicas))),
            "staleness/thrown_away_tokens": float(self._thrown_away),
        }
        self._seconds, self._thrown_away = dict.fromkeys(seconds, 0.0), 0
        return metrics

    def _living(self) -> dict[int, Replica]:
        living = {each.number: each for each in self.engines.living()}
        return {number: each for number, each in living.items() if number not in self.dead}

    def _require_living(self, check_interrupt: Callable[[], None]) -> None:
        """Wait for a new replica if none is left; the trainer can send it weights meanwhile."""
        while not self._living():
            if self.threads:
                self._hear(check_interrupt)
                continue
            check_interrupt()
            assert self.version is not None, "it is open"
            self.publish(self.version)
            if not self._living():
                time.sleep(_LOOK_SECONDS)

    def _request(self, row: DealtRow) -> Request:
        return self.request(self.dealt.groups[row.group], row.place)

    def _hear(self, check_interrupt: Callable[[], None]) -> None:
        """Wait briefly for an event, and process it."""
        check_interrupt()
        self.engines.check_training()
        try:
            event = self.events.get(timeout=_LOOK_SECONDS)
        except Empty:
            return
        if isinstance(event, Lost):
            self._lose(event)
            return
        if isinstance(event, Probed):
            self.probed[event.number] = event.responses
            return
        assert self.version is not None, "it is open"
        self.dealt.advanced(event.number, event.steps)
        self.dealt.drawn(event.number, event.places, event.responses, step=self.version + 1)
        if event.has_ended:
            self.dealt.ended(event.number)
            self._seconds["busy"] += self.threads.pop(event.number).busy_seconds

    def _lose(self, event: Lost) -> None:
        if not is_loss(event):
            raise event.error
        self.threads.pop(event.number)
        self.probed.pop(event.number, None)
        self.dead.add(event.number)
        self._thrown_away += self.dealt.lost(event.number)
        self.engines.begin_replacing(event.number)
