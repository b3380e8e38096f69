"""A training engine that runs on a subset of the training ranks."""

from collections.abc import Callable, Iterator

from torch import Tensor

from mindrl.algorithms.losses import BatchT, Loss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.sequences import Sequences
from mindrl.platform.rendezvous import World
from mindrl.training.engine import Adapters, StatePart, TrainingEngine
from mindrl.training.state_slice import ReadState, StateSlice


class EngineInWorld:
    """Activates an engine's world around each of its calls; see `TrainingEngine`."""

    def __init__(self, engine: TrainingEngine, world: World) -> None:
        self.engine, self.world = engine, world
        self.folder, self.description = engine.folder, engine.description
        self.head, self.device_type, self.sharding = (
            engine.head,
            engine.device_type,
            engine.sharding,
        )

    @property
    def adapters(self) -> Adapters | None:
        """Adapters that are trained in place of the weights."""
        return self.engine.adapters

    @property
    def optimizer(self) -> object | None:
        """The engine's optimizer."""
        return self.engine.optimizer

    @property
    def updates(self) -> int:
        """Optimizer steps taken so far."""
        return self.engine.updates

    def forward(
        self, sequences: Sequences, micro_batching: MicroBatching, *, at_end: bool = False
    ) -> tuple[Tensor, ...] | None:
        """Return the head's output for each response token."""
        with self.world.active():
            return self.engine.forward(sequences, micro_batching, at_end=at_end)

    def train_step(
        self,
        minibatch: BatchT,
        micro_batching: MicroBatching,
        loss: Loss[BatchT],
        *,
        keep: Callable[[tuple[Tensor, ...]], None] | None = None,
    ) -> dict[str, float]:
        """Take one optimizer step on this replica's share of a minibatch."""
        with self.world.active():
            return self.engine.train_step(minibatch, micro_batching, loss, keep=keep)

    def local_tensors(self) -> dict[str, Tensor]:
        """Return this rank's weights by their local names."""
        with self.world.active():
            return self.engine.local_tensors()

    def state(self, part: StatePart) -> Iterator[Tensor]:
        """Yield the tensors of one part of the state."""
        with self.world.active():
            return iter([*self.engine.state(part)])

    def state_slices(self) -> Iterator[StateSlice]:
        """Yield the checkpoint state of this rank."""
        with self.world.active():
            return iter([*self.engine.state_slices()])

    def restore(self, updates: int, read: ReadState) -> None:
        """Load weights and moments."""
        with self.world.active():
            self.engine.restore(updates, read)
