"""Training ranks and rollout replicas of a test, each in processes and a world of their own."""

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from forked_workers import ForkedGroup, ForkedWorkers

from mindrl.preflight.run_shardings import RunPlan


@dataclass
class LinkedGroups:
    """One training side, and replicas by their numbers."""

    workers: ForkedWorkers
    plan: RunPlan
    replicas: dict[int, ForkedGroup] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    """Replicas that were killed and not started again."""
    generations: Iterator[int] = field(default_factory=count)
    """Numbers of links that were not used yet."""

    def __post_init__(self) -> None:
        self.trainers = self.workers.start(self.plan, "link_probe:LinkedTrainer")
        self.address = self.trainers.call_all("link_address")[0]

    def start(self, replica: int) -> None:
        """Start a replica, or another one in its place; it has no link yet."""
        ranks = self.plan.replica.world_size
        started = self.workers.start(self.plan, "link_probe:LinkedReplica", ranks=ranks)
        self.replicas[replica] = started
        self.ended.discard(replica)

    def restart_ended(self) -> None:
        """Start each replica that was killed again, and link it."""
        for replica in sorted(self.ended):
            self.start(replica)
            assert self.link(replica) == [None] * len(self.trainers.ranks)

    def link(self, replica: int) -> list[str | None]:
        """Open a new link from both sides; returns what the training ranks say."""
        group, generation = self.replicas[replica], next(self.generations)
        begin_all(group, "join_link", self.address, replica, generation)
        said = self.trainers.call_all("open_link", replica, generation)
        group.collect()
        return said

    def publish(self, version: int, receiving: Sequence[int], sent: Sequence[int] = ()) -> Any:
        """Send weights to replicas, or to others than those that receive; returns both answers."""
        for replica in receiving:
            begin_all(self.replicas[replica], "tried", "receive_weights", version)
        lost = self.trainers.call_all("send_weights", list(sent or receiving))
        return lost, {replica: self.received(replica) for replica in receiving}

    def received(self, replica: int) -> Any:
        """Return what each rank of a replica says of a transfer; None of one that is gone."""
        try:
            return self.replicas[replica].collect()
        except (EOFError, ConnectionError):
            return None

    def kill(self, replica: int, rank: int = 0, *, by: signal.Signals = signal.SIGKILL) -> int:
        """End one process of a replica at once, or do something else to it; returns its number."""
        process: int = self.replicas[replica].call_all("process")[rank]
        os.kill(process, by)
        self.ended.add(replica)
        return process

    def kill_in_next_transfer(self, replica: int, tensors: int) -> None:
        """Let a replica be killed as soon as so many tensors have arrived."""
        self.replicas[replica].call_all("die_in_next_transfer", tensors)
        self.ended.add(replica)

    def stop(self) -> None:
        """End all processes that still live."""
        for group in (*self.replicas.values(), self.trainers):
            try:
                group.stop()
            except (BrokenPipeError, ConnectionError):
                group.close()


def begin_all(group: ForkedGroup, method: str, *arguments: Any) -> None:
    """Call all ranks of a group alike; `collect` has to follow."""
    group.begin(method, [arguments] * len(group.ranks))
