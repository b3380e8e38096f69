"""Calls of worker processes: one interface to all kinds of workers.

The driver calls training workers, replicas on their own devices, and servers in this way.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol


class Pending(Protocol):
    """A running or finished call of workers."""

    def wait(self) -> list[Any]:
        """Wait for all workers; return the results.

        Raises:
            WorkerDiedError: A worker died, hung or raised.
        """


class Workers(Protocol):
    """Worker processes that are called together."""

    meanwhile: Callable[[], None]
    """Called repeatedly while the caller waits for them."""

    @property
    def size(self) -> int:
        """Number of workers."""

    def begin(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
        *,
        first: int = 0,
    ) -> Pending:
        """Start a call on as many workers as there are arguments, from `first` on.

        Each worker executes its calls in order. Only `answering` workers return their results,
        counted from `first`; None means all.
        """

    def call(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
    ) -> list[Any]:
        """Call a method on each worker with its own arguments, and wait for all."""

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on each worker with the same arguments."""

    def lost(self) -> str | None:
        """Return which workers have ended; None if none has, or they are not mindrl's processes."""

    def stop(self) -> None:
        """End the workers, or stop using those that are not mindrl's."""
