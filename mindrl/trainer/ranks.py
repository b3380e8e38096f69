"""Worker processes as the trainer calls them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mindrl.layouts.layout import RolloutLayout, TrainLayout


class Pending(Protocol):
    """A method that ranks run, or have run."""

    def wait(self) -> list[Any]:
        """Wait for all of them; returns what each says."""


class Ranks(Protocol):
    """Worker processes that are called together."""

    meanwhile: Callable[[], None]
    """What the caller does again and again while it waits for them."""

    def call(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
    ) -> list[Any]:
        """Call a method on each rank with its own arguments; not all of them need to answer."""

    def begin(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
        *,
        first: int = 0,
    ) -> Pending:
        """Call a method on as many ranks as there are arguments, from the first on.

        What they are asked for before they are done they do in that order.
        """

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on each rank with the same arguments."""


def ask_replicas(
    group: Ranks,
    layout: TrainLayout | RolloutLayout,
    method: str,
    shares: Sequence[tuple[Any, ...]],
) -> list[Any]:
    """Give all ranks of a replica its share; return what the replicas' first ranks say."""
    return begin_replicas(group, layout, method, shares).wait()


@dataclass(frozen=True)
class ReplicasCall:
    """A method that the replicas of a layout run."""

    call: Pending
    leaders: tuple[int, ...]
    """Of the ranks that run it, those that answer."""

    def wait(self) -> list[Any]:
        """Wait for all ranks; returns what the replicas' first ranks say."""
        replies = self.call.wait()
        return [replies[rank] for rank in self.leaders]


def begin_replicas(
    group: Ranks,
    layout: TrainLayout | RolloutLayout,
    method: str,
    shares: Sequence[tuple[Any, ...]],
) -> ReplicasCall:
    """Give all ranks of a replica its share, and wait for nobody."""
    arguments = [shares[layout.replica_of(rank)] for rank in range(layout.world_size)]
    first = layout.first_rank if isinstance(layout, TrainLayout) else 0
    call = group.begin(method, arguments, layout.leaders, first=first)
    return ReplicasCall(call, layout.leaders)
