"""The trainer's interface to rollout engines, on the training devices or their own."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mindrl.batch.rollouts import Responses
from mindrl.layouts.layout import RolloutLayout
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.ranks import Ranks, call_replicas
from mindrl.workers.calls import Pending


class Engines(Protocol):
    """All rollout replicas of a run."""

    @property
    def replicas(self) -> int:
        """Number of shares into which a batch is divided."""

    def each(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method with one share per replica; return the results in that order."""

    def publish(self, version: int) -> Collection[int]:
        """Give all engines the training side's weights for further generation.

        `version` is the number of the last step that changed them; engines that have them are
        skipped. Call it while no engine is generating.

        Returns:
            The numbers of the replicas that were lost.

        Raises:
            ClusterError: No replica is left, and none will start.
        """

    def take_routes(self) -> list[Any]:
        """Return a reference to the routes of ended requests of each engine on its own devices."""

    def look(self) -> None:
        """Start replacing lost engines while the caller waits for something else."""

    def flush_metrics(self) -> list[dict[str, float]]:
        """Return the metrics since the last call of ranks that do not train."""


class Replica(Protocol):
    """A rollout replica on its own devices, driven separately from the others.

    All members but `number` raise WorkerDiedError once it is lost.
    """

    @property
    def number(self) -> int:
        """Number of the replica; a replacement has the same number."""

    def begin(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Start requests, as `RolloutEngine.begin`."""

    def advance(
        self, steps: int, more: Sequence[Request], until: int | None = None
    ) -> tuple[list[int], Responses]:
        """Run steps, as `RolloutEngine.advance`; return completed indices and their responses."""

    def take(self) -> Responses:
        """Return the sampled tokens, as `RolloutEngine.take_back`."""

    def take_routes(self) -> Any:
        """Return a reference to the routes of requests that ended since the last call."""


class SeparateEngines(Engines, Protocol):
    """Replicas on their own devices, which start and end individually."""

    def living(self) -> Sequence[Replica]:
        """Return the replicas with the weights of the last `publish`, by number; may be empty.

        `publish` adds those that have started, and removes the lost.
        """

    def check_training(self) -> None:
        """Check the training processes while replicas are waited for.

        Raises:
            WorkerDiedError: A training process has ended.
        """

    def begin_replacing(self, number: int, why: str) -> None:
        """Start a replacement of a lost replica in the background, unless one is starting.

        It becomes available after a later `publish`; `publish` itself replaces replicas that it
        loses. A replica lost more than `rl_config.max_restarts` times in a row is given up.
        """


@dataclass(frozen=True)
class ColocatedEngines:
    """Engines in the training processes: the switch to the rollout phase updates their weights."""

    group: Ranks
    layout: RolloutLayout

    @property
    def replicas(self) -> int:
        """Number of replicas in the layout."""
        return self.layout.replicas

    def each(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call all of them concurrently."""
        return call_replicas(self.group, self.layout, method, shares)

    def begin(self, method: str, replica: int, share: tuple[Any, ...]) -> Pending:
        """Start a call of all ranks of a replica; the first result is the replica's.

        It executes its calls in order, and does not wait for other replicas.
        """
        ranks = self.layout.tp * self.layout.pp
        return self.group.begin(method, [share] * ranks, (0,), first=self.layout.leaders[replica])

    def answered(self, calls: Sequence[Pending], seconds: float) -> list[int]:
        """Wait up to `seconds` for the first answer; return the indices of answered calls."""
        return self.group.answered(calls, seconds)

    def publish(self, version: int) -> Collection[int]:  # noqa: ARG002
        """Do nothing."""
        return ()

    def take_routes(self) -> list[Any]:
        """Return an empty list: the routes stay in these processes."""
        return []

    def look(self) -> None:
        """Do nothing: they share the trainer's processes."""

    def flush_metrics(self) -> list[dict[str, float]]:
        """Return an empty list: all ranks train."""
        return []
