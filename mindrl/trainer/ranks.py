"""Calls of the replicas of a layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.workers.calls import Pending, Workers


class Ranks(Workers, Protocol):
    """Workers of the training devices."""

    def answered(self, calls: Sequence[Any], seconds: float) -> list[int]:
        """Wait up to `seconds` for the first answer to running calls, which `begin` returned.

        Returns the indices of calls that ranks have answered. Raises as their `wait`.
        """


def call_replicas(
    group: Ranks,
    layout: TrainLayout | RolloutLayout,
    method: str,
    shares: Sequence[tuple[Any, ...]],
) -> list[Any]:
    """Send each replica's share to all its ranks; return the results of the first ranks."""
    return begin_replicas(group, layout, method, shares).wait()


@dataclass(frozen=True)
class ReplicasCall:
    """A call of a method on the replicas of a layout."""

    call: Pending
    leaders: tuple[int, ...]
    """Ranks that return results."""

    def wait(self) -> list[Any]:
        """Wait for all ranks; return the results of the replicas' first ranks."""
        replies = self.call.wait()
        return [replies[rank] for rank in self.leaders]


def begin_replicas(
    group: Ranks,
    layout: TrainLayout | RolloutLayout,
    method: str,
    shares: Sequence[tuple[Any, ...]],
) -> ReplicasCall:
    """Send each replica's share to all its ranks, without waiting."""
    arguments = [shares[layout.replica_of(rank)] for rank in range(layout.world_size)]
    first = layout.first_rank if isinstance(layout, TrainLayout) else 0
    call = group.begin(method, arguments, layout.leaders, first=first)
    return ReplicasCall(call, layout.leaders)
