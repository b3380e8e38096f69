"""What a run asks of whatever trains its models.

Shapes: B sequences, T positions.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from typing import Protocol, TypeVar

from torch import Tensor

from mindrl.algorithms.losses import LossTerms
from mindrl.algorithms.policy_losses import Total
from mindrl.batch.balance import MicroBatching
from mindrl.batch.sequences import Sequences
from mindrl.models.adapters import LowRank
from mindrl.models.decoder import Head
from mindrl.models.description import ModelDescription
from mindrl.models.placement import Box
from mindrl.models.sharding import Sharding
from mindrl.training.state_slice import ReadState, StateSlice

Batch = TypeVar("Batch", bound=Sequences)
Loss = Callable[[tuple[Tensor, ...], Batch, Tensor, Total], LossTerms]
"""From what the head says of each token, [B, T] each, the batch on the host, a weight [B, T]: 1 for
the tokens that this rank has read, 0 for all others; and the sum over the ranks that read them."""


class Adapters(Protocol):
    """Factors of low rank that learn in place of a model's weights; this rank's part of them."""

    low_rank: LowRank

    @property
    def sharding(self) -> Sharding:
        """Who holds which part of the factors."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the factors by their local names, in the shapes of their table."""

    def difference(self, name: str, box: Box) -> Tensor | None:
        """Return what is added to a box of a local weight, float32; None where nothing is."""

    def off(self) -> AbstractContextManager[None]:
        """Leave them out: the model is what they were put on."""


class StatePart(Enum):
    """The parts of the state of a model, as they leave the device and come back."""

    PARAMETERS = "train_param"
    GRADIENTS = "train_grad"
    OPTIMIZER = "train_optimizer"


class TrainingEngine(Protocol):
    """This rank's part of one model."""

    folder: str
    """Hugging Face's, that the model came from."""
    description: ModelDescription
    head: Head
    device_type: str
    sharding: Sharding
    """Who holds which part of the model."""

    @property
    def adapters(self) -> Adapters | None:
        """What learns in place of the weights; None where those do."""

    def forward(
        self, sequences: Sequences, micro_batching: MicroBatching, *, at_end: bool = False
    ) -> tuple[Tensor, ...] | None:
        """Say what the head says of each response token. A collective over the replica's ranks.

        All of those have the same sequences. At the end asks behind the last token of each sequence
        instead, at position T at most.

        Returns:
            float32 [B, T], or [B, T + 1] at the end, on the host: log-probs and entropies of a
            vocabulary, or values. 0 elsewhere. None on ranks without the head.
        """

    def train_step(
        self,
        minibatch: Batch,
        micro_batching: MicroBatching,
        loss: Loss[Batch],
        *,
        keep: Callable[[tuple[Tensor, ...]], None] | None = None,
    ) -> dict[str, float]:
        """Take one optimizer step on this replica's share. A collective over all ranks.

        `keep` takes what the head said before the step, as `forward` returns it; it is not called
        on ranks without the head.

        Returns:
            Metrics of the whole minibatch, the same on every rank that has the head. `skipped` is 1
            for a step that no rank has taken; `nonfinite/<what>` is there on ranks that had it.
        """

    def local_tensors(self) -> dict[str, Tensor]:
        """Return this rank's weights by their local names, in the shapes of its table."""

    def state(self, part: StatePart) -> Iterator[Tensor]:
        """Yield the tensors of one part of the state; several may share a storage."""

    @property
    def updates(self) -> int:
        """Optimizer steps taken so far; of a model that does not learn 0."""

    def state_slices(self) -> Iterator[StateSlice]:
        """Yield all that a model cannot go on without, as far as this rank keeps it."""

    def restore(self, updates: int, read: ReadState) -> None:
        """Go on behind so many optimizer steps with weights and moments that `read` returns."""
