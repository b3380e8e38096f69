"""Training ranks and rollout replicas of a test, each in processes and a world of their own."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from forked_workers import ForkedGroup, ForkedWorkers

from mindrl.preflight.run_shardings import RunPlan


@dataclass
class LinkedGroups:
    """One training side, and replicas by their numbers."""

    workers: ForkedWorkers
    plan: RunPlan
    replicas: dict[int, ForkedGroup] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trainers = self.workers.start(self.plan, "link_probe:LinkedTrainer")
        self.address = self.trainers.call_all("link_address")[0]

    def start(self, replica: int) -> None:
        """Start a replica, or another one in its place; it has no link yet."""
        ranks = self.plan.replica.world_size
        started = self.workers.start(self.plan, "link_probe:LinkedReplica", ranks=ranks)
        self.replicas[replica] = started

    def link(self, replica: int, generation: int = 0) -> list[str | None]:
        """Open a link from both sides; returns what the training ranks say."""
        group = self.replicas[replica]
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
        return process

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
