"""The rollout engines as the trainer sees them, on the devices that train or on their own."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mindrl.batch.rollouts import Responses
from mindrl.layouts.layout import RolloutLayout
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.ranks import Ranks, ask_replicas


class Engines(Protocol):
    """All rollout replicas of a run."""

    @property
    def replicas(self) -> int:
        """How many shares a batch is dealt in, whoever answers them."""

    def each(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method with one share for each replica; returns what they say, in that order."""

    def publish(self, version: int) -> Collection[int]:
        """Let all that is drawn from now on be drawn with the weights of the training side.

        `version` is theirs, the number of the last step that has changed them; who has them already
        is left alone. Called while no engine is at work.

        Returns:
            The numbers of the replicas that were lost in it.

        Raises:
            ClusterError: No replica is left, and none will come.
        """

    def look(self) -> None:
        """Begin to replace engines that are gone, while something else is waited for."""

    def flush_metrics(self) -> list[dict[str, float]]:
        """Return what ranks that do not train have measured since the last call."""


class Replica(Protocol):
    """A rollout replica on devices of its own, for whoever drives each by itself.

    All but `number` raise WorkerDiedError where it is lost; it stays lost then.
    """

    @property
    def number(self) -> int:
        """Of the replica; one that takes the place of a lost one has its number."""

    def begin(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Take requests, as `RolloutEngine.begin`."""

    def advance(self, steps: int, more: Sequence[Request]) -> tuple[list[int], Responses]:
        """Take so many steps, as `RolloutEngine.advance`; returns the responses to these places."""

    def take(self) -> Responses:
        """Return what was drawn, as `RolloutEngine.take_back`."""


class SeparateEngines(Engines, Protocol):
    """Replicas on devices of their own, which come and go one by one."""

    def living(self) -> Sequence[Replica]:
        """Return those that have the weights of the last `publish`, by number; may be none.

        `publish` adds those that have come up by then, and takes away the lost.
        """

    def heed(self) -> None:
        """Do what is done while they are waited for.

        Raises:
            WorkerDiedError: A process that trains is gone.
        """

    def begin_replacing(self, number: int) -> None:
        """Start another in the place of a lost one, in the background, unless that was done.

        It is among the living behind a later `publish`. `publish` does this itself for those that
        it loses. Who is lost more than `rl_config.max_restarts` times in a row is given up.
        """


@dataclass(frozen=True)
class ColocatedEngines:
    """Those in the processes that train: the way to a rollout gives them the weights."""

    group: Ranks
    layout: RolloutLayout

    @property
    def replicas(self) -> int:
        """As many as the layout has."""
        return self.layout.replicas

    def each(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Ask all of them at once."""
        return ask_replicas(self.group, self.layout, method, shares)

    def publish(self, version: int) -> Collection[int]:  # noqa: ARG002
        """Do nothing."""
        return ()

    def look(self) -> None:
        """Do nothing: they are where the trainer is."""

    def flush_metrics(self) -> list[dict[str, float]]:
        """Return nothing: all ranks train."""
        return []
