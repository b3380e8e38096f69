"""The interface of a training engine.

Shapes: B sequences, T positions.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from enum import Enum
from typing import Protocol, TypeVar

from torch import Tensor

from mindrl.algorithms.losses import BatchT, Loss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.route_keys import RoutePart
from mindrl.batch.sequences import Sequences
from mindrl.models.adapters import LowRank
from mindrl.models.decoder import Head
from mindrl.models.description import ModelDescription
from mindrl.models.placement import Box, ShardingTable
from mindrl.models.sharding import Sharding
from mindrl.training.state_slice import ReadState, StateSlice

Batch = TypeVar("Batch", bound=Sequences)


class Adapters(Protocol):
    """This rank's part of low-rank factors that are trained in place of a model's weights."""

    @property
    def low_rank(self) -> LowRank:
        """Which matrices have factors, and the rank of the factors."""

    @property
    def sharding(self) -> Sharding:
        """Which rank holds which part of the factors."""

    @property
    def table(self) -> ShardingTable:
        """This rank's part of that sharding."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the factors by their local names, in the shapes of their table."""

    def difference(self, name: str, box: Box) -> Tensor | None:
        """Return what the adapters add to a box of a local weight, float32; None if not adapted."""

    def off(self) -> AbstractContextManager[None]:
        """Disable the adapters inside the context, so that the base model runs."""


class StatePart(Enum):
    """The parts of a model's state, offloaded and onloaded separately."""

    PARAMETERS = "train_param"
    GRADIENTS = "train_grad"
    OPTIMIZER = "train_optimizer"


class KeptRoutes(Protocol):
    """Routes of sampled sequences, which passes of these sequences replay on any rank."""

    def keep(self, routes: Mapping[int, RoutePart]) -> None:
        """Keep the routes of ended requests, for all layers, by content key."""

    def retain(self, keys: Collection[int]) -> None:
        """Forget the routes of all sequences but these. A collective over the model's ranks."""

    def kept(self) -> dict[int, RoutePart]:
        """Return this rank's routes that a checkpoint needs."""


class TrainingEngine(Protocol):
    """This rank's part of one model."""

    folder: str
    """Hugging Face folder that the model came from."""
    description: ModelDescription
    head: Head
    device_type: str
    sharding: Sharding
    """Which rank holds which part of the model."""

    def active(self) -> AbstractContextManager[None]:
        """Make the model's ranks the default process group in the body."""

    @property
    def adapters(self) -> Adapters | None:
        """Adapters that are trained in place of the weights; None if the weights are trained."""

    def forward(
        self, sequences: Sequences, micro_batching: MicroBatching, *, at_end: bool = False
    ) -> tuple[Tensor, ...] | None:
        """Return the head's output for each response token. A collective over the replica's ranks.

        All ranks of a replica pass the same sequences. `at_end` evaluates the position after the
        last token of each sequence instead, position T at most.

        Returns:
            float32 [B, T], or [B, T + 1] with `at_end`, on the host: log-probs or values; 0 at
            other positions. A teacher with candidates adds ids and log-probs of `LikelyTokens`,
            [K, R] each. None on ranks without the head.
        """

    def train_step(
        self,
        minibatch: BatchT,
        micro_batching: MicroBatching,
        loss: Loss[BatchT],
        *,
        keep: Callable[[Tensor], None] | None = None,
    ) -> dict[str, float]:
        """Take one optimizer step on this replica's share. A collective over all ranks.

        `keep` receives the log-probs or values from before the step, as `forward` returns them; it
        is not called on ranks without the head.

        Returns:
            Metrics of the whole minibatch, the same on every rank that has the head. `skipped` is 1
            for a step that no rank took; `nonfinite/<what>` is set on the ranks where it occurred.
        """

    @property
    def routes(self) -> KeptRoutes | None:
        """Routes that this model replays; None without router replay."""

    def local_tensors(self) -> dict[str, Tensor]:
        """Return this rank's weights by their local names, in the shapes of its table."""

    def complete_weights(self) -> None:
        """Wait until the last update's weights are whole. A collective over all ranks.

        Call it after updates, before anything but the next update reads or moves the weights.
        """

    def state(self, part: StatePart) -> Iterator[Tensor]:
        """Yield the tensors of one part of the state; several may share a storage."""

    @property
    def optimizer(self) -> object | None:
        """The library's optimizer; None for a model that is not trained."""

    @property
    def updates(self) -> int:
        """Optimizer steps taken so far; 0 for a model that is not trained."""

    def state_slices(self) -> Iterator[StateSlice]:
        """Yield the state that a checkpoint needs, as far as this rank keeps it."""

    def restore(self, updates: int, read: ReadState) -> None:
        """Load the weights and moments that `read` returns and set the optimizer step count."""
