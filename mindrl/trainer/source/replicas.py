"""Replicas on their own devices that generate while the trainer trains."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue

from mindrl.batch.rollouts import Responses
from mindrl.observability.metrics import Metrics
from mindrl.observability.trace import span
from mindrl.trainer.engines import Replica, SeparateEngines
from mindrl.trainer.source.assignments import Assignments
from mindrl.trainer.source.generation import Generation, IsEnough, Measured
from mindrl.trainer.source.group import OpenGroup
from mindrl.trainer.source.group_ratings import GroupRatings
from mindrl.trainer.source.pool import GroupPool
from mindrl.trainer.source.replica_thread import (
    Advanced,
    Lost,
    Probed,
    ReplicaThread,
    RoundEnd,
    is_loss,
)
from mindrl.trainer.weight_probe import WeightProbe

_HEAR_SECONDS = 0.005
"""Interval between looks at the answers of environments."""
_LOOK_SECONDS = 0.1
"""Interval between checks of whether the run was asked to stop."""


class Replicas(Generation):
    """Lets all living replicas generate, and reassigns the requests of lost ones.

    With `completes`, all open responses are complete before new weights are published; otherwise
    they continue with the new weights.
    """

    runs_ahead = True

    def __init__(
        self,
        engines: SeparateEngines,
        pool: GroupPool,
        *,
        round_steps: int,
        completes: bool,
        ratings: GroupRatings | None = None,
    ) -> None:
        """Set the parts; no replica generates yet."""
        self.ratings = ratings
        self.engines, self.pool, self.assignments = engines, pool, Assignments(pool)
        # With environments a round ends at the first complete turn, which can be answered.
        until = None if pool.turns is None else 1
        self.round_end = RoundEnd(round_steps, until, pool.has_routes)
        self.completes = completes
        self.probe_of = partial(WeightProbe.of, pool.answering, pool.seed)
        self.probe: WeightProbe | None = None
        """Probe of the replicas' weights."""
        self.probed = dict[int, Responses]()
        self.version: int | None = None
        """Version of the replicas' weights: the step after which they were published."""
        self.events: SimpleQueue[Advanced | Probed | Lost] = SimpleQueue()
        self.threads: dict[int, ReplicaThread] = {}
        """Threads of the generating replicas, by number."""
        self.dead: set[int] = set()
        """Replicas lost since the last weights."""
        self._seconds = dict.fromkeys(("began", "waited", "publish", "pause", "busy"), 0.0)
        self._replicas = self._thrown_away = 0

    def begin(self, step: int, check_interrupt: Callable[[], None]) -> None:
        """Begin a step, with the weights of the step before on at least one replica."""
        self._seconds["began"] = time.perf_counter()
        if self.version != step - 1:
            self._publish(step - 1)
        self._require_living(check_interrupt)
        self._replicas = len(self._living())

    def generate(self, step: int, is_enough: IsEnough, check_interrupt: Callable[[], None]) -> None:
        """Let the replicas generate until there are enough complete groups."""
        assert self.version == step - 1, "the replicas have the weights of the step"
        began = time.perf_counter()
        with self.pool.answering.rewards.timer("rollout"):
            while not is_enough(self.pool.complete_groups()):
                self._require_living(check_interrupt)
                self._assign()
                self._process_event(check_interrupt)
        self._seconds["waited"] += time.perf_counter() - began

    def end(
        self,
        step: int,
        trained: Sequence[OpenGroup],
        check_interrupt: Callable[[], None],
    ) -> Measured:
        """Let the replicas run ahead; wait for the probes of those that generate."""
        self._assign()
        check_interrupt()
        while self.threads.keys() - self.probed.keys():
            self._process_event(check_interrupt)
        assert self.probe is not None, "weights were published"
        probed = self.probe.rollouts(dict(sorted(self.probed.items())))
        return Measured(metrics=self.pool.staleness(step, trained), probed=probed)

    def publish(self, step: int) -> Metrics:
        """Stop the replicas, and publish the weights after a step; return the times of the step."""
        self.stop()
        self._publish(step)
        seconds = self._seconds
        whole = time.perf_counter() - seconds["began"]
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

    def _assign(self) -> None:
        """Send unassigned responses to the living replicas."""
        assert self.probe is not None, "weights were published"
        living, probe = self._living(), self.probe
        sampling, end = self.pool.answering.sampling, self.round_end
        for number, rows in self.assignments.assign(living.keys()).items():
            if number not in self.threads:
                self.threads[number] = ReplicaThread(
                    living[number], sampling, end, self.events.put, probe=probe
                )
            self.threads[number].add([self.pool.request(row) for row in rows])

    def stop(self) -> None:
        """Stop all replicas, and collect what they have generated."""

        def is_over() -> bool:
            return not self.completes or all(self.pool.complete_groups())

        began = time.perf_counter()
        while True:
            while not is_over() and self._living():
                self._assign()
                self._process_event(lambda: None)
            self._seconds["waited"] += time.perf_counter() - began
            began = time.perf_counter()
            with span("pause of the replicas"):
                for thread in self.threads.values():
                    thread.stop()
                while self.threads:
                    self._process_event(lambda: None)
                # Add outstanding answers of environments: the pool may be saved.
                while self.pool.hear(_LOOK_SECONDS):
                    pass
            self._seconds["pause"] += time.perf_counter() - began
            if is_over() or not self._living():
                return

    def _publish(self, version: int) -> None:
        """Publish new weights to the replicas, including replacements."""
        assert not self.threads, "they generate nothing while weights come"
        began = time.perf_counter()
        with span("publish"):
            self.engines.publish(version)
        if version != self.version:
            self.probed.clear()
            self.probe = self.probe_of(version)
        self.version = version
        self.dead.clear()
        self._seconds["publish"] += time.perf_counter() - began

    def _living(self) -> dict[int, Replica]:
        living = {each.number: each for each in self.engines.living()}
        return {number: each for number, each in living.items() if number not in self.dead}

    def _require_living(self, check_interrupt: Callable[[], None]) -> None:
        """Wait for a new replica if none is left; the trainer can send it weights meanwhile."""
        while not self._living():
            if self.threads:
                self._process_event(check_interrupt)
                continue
            check_interrupt()
            assert self.version is not None, "weights were published"
            self._publish(self.version)
            if not self._living():
                time.sleep(_LOOK_SECONDS)

    def _process_event(self, check_interrupt: Callable[[], None]) -> None:
        """Wait briefly for an event, and process it."""
        check_interrupt()
        self.engines.check_training()
        is_asked = self.pool.hear()
        try:
            event = self.events.get(timeout=_HEAR_SECONDS if is_asked else _LOOK_SECONDS)
        except Empty:
            return
        if isinstance(event, Lost):
            self._lose(event)
            return
        if isinstance(event, Probed):
            self.probed[event.number] = event.responses
            return
        assert self.version is not None, "weights were published"
        self.assignments.advanced(event.number, event.steps)
        step, indices = self.version + 1, event.indices
        self.assignments.received(event.number, indices, event.responses, step=step)
        if event.routes is not None:
            self.pool.routes.append(event.routes)
        if self.ratings is not None:
            self.ratings.begin()
        if event.has_ended:
            self.assignments.ended(event.number)
            self._seconds["busy"] += self.threads.pop(event.number).busy_seconds

    def _lose(self, event: Lost) -> None:
        if not is_loss(event):
            raise event.error
        self.threads.pop(event.number)
        self.probed.pop(event.number, None)
        self.dead.add(event.number)
        self._thrown_away += self.assignments.lost(event.number)
        self.engines.begin_replacing(event.number, str(event.error))
