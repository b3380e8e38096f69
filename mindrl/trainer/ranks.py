"""Worker processes as the trainer calls them."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from mindrl.layouts.layout import RolloutLayout, TrainLayout


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

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on each rank with the same arguments."""


def ask_replicas(
    group: Ranks,
    layout: TrainLayout | RolloutLayout,
    method: str,
    shares: Sequence[tuple[Any, ...]],
) -> list[Any]:
    """Give all ranks of a replica its share; return what the replicas' first ranks say."""
    arguments = [shares[layout.replica_of(rank)] for rank in range(layout.world_size)]
    replies = group.call(method, arguments, layout.leaders)
    return [replies[rank] for rank in layout.leaders]
