"""What a plan asks of each training engine: its tables, bytes and rules.

Imports no torch, and neither does what it names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from mindrl.config.backends import TRAINING_BACKEND, TrainingBackend
from mindrl.config.finding import Finding
from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder
from mindrl.models.decoder import DType, Head
from mindrl.models.description import ModelDescription
from mindrl.models.legality import Keys
from mindrl.models.sharding import Sharding
from mindrl.training.archon.sharding import archon_sharding
from mindrl.training.megatron.legality import legal_orders, megatron_findings
from mindrl.training.megatron.sharding import megatron_sharding
from mindrl.training.megatron.state_bytes import TrainedBytes, trained_bytes


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How an engine is to keep a model; each reads what it knows."""

    dtype: DType
    """Of the weights; see `EnginePlanning.weights`."""
    head: Head = "vocabulary"
    grouped_experts: bool = False
    fsdp_size: int | None = None


class _TrainedBytes(Protocol):
    def __call__(
        self, sharding: Sharding, layout: TrainLayout, *, distributed_optimizer: bool
    ) -> tuple[TrainedBytes, ...]: ...


@dataclass(frozen=True, kw_only=True)
class EnginePlanning:
    """What is known of an engine without running it."""

    name: str
    """In a sentence."""
    sharding: Callable[[ModelDescription, TrainLayout, Storage], Sharding]
    """Who holds what."""
    findings: Callable[[ModelDescription, TrainLayout, Keys], Iterable[Finding]]
    """What keeps it from cutting a model by a layout."""
    trained_bytes: _TrainedBytes
    """What each rank allocates to train what it holds."""
    legal_orders: Callable[[RankOrder, int], Iterable[RankOrder]]
    """The orders that a grid can be given, by its own order and the ranks of a node."""
    weights: Literal["as they compute", "float32"]
    """The type that weights are kept in."""

    def weights_dtype(self, dtype: DType) -> DType:
        """Return the type of the weights of a model that computes in a type."""
        return "float32" if self.weights == "float32" else dtype


def planning_of(backend: TrainingBackend) -> EnginePlanning:
    """Return what is known of the engine of a backend."""
    return _ENGINES[backend]


def _megatron_sharding(model: ModelDescription, layout: TrainLayout, storage: Storage) -> Sharding:
    experts: Literal["grouped", "sequential"]
    experts = "grouped" if storage.grouped_experts else "sequential"
    return megatron_sharding(model, layout, dtype=storage.dtype, experts=experts, head=storage.head)


def _archon_sharding(model: ModelDescription, layout: TrainLayout, storage: Storage) -> Sharding:
    return archon_sharding(
        model, layout, dtype=storage.dtype, fsdp_size=storage.fsdp_size, head=storage.head
    )


def _archon_bytes(
    sharding: Sharding,
    layout: TrainLayout,  # noqa: ARG001 - its ranks share the rows that the tables say
    *,
    distributed_optimizer: bool,  # noqa: ARG001 - always
) -> tuple[TrainedBytes, ...]:
    """Count gradients as large as the weights, and two moments."""
    return tuple(
        TrainedBytes(weights=held, gradients=held, optimizer=2 * held)
        for held in sharding.held_bytes()
    )


def _archon_orders(own: RankOrder, ranks_per_node: int) -> Iterator[RankOrder]:
    """Yield orders in which neighbours that share rows are neighbours of the engine's own order.

    A shard is the place of a rank among those that differ in `dp` and `cp`, in the order of ranks.
    """
    for order in legal_orders(own, ranks_per_node):
        sharing = [name for name, radix in order.digits if name in ("cp", "dp") and radix > 1]
        if sharing == sorted(sharing):
            yield order


_ARCHON = EnginePlanning(
    name="archon",
    sharding=_archon_sharding,
    findings=megatron_findings,
    trained_bytes=_archon_bytes,
    legal_orders=_archon_orders,
    weights="float32",
)
_ENGINES: Mapping[TrainingBackend, EnginePlanning] = {
    TRAINING_BACKEND: EnginePlanning(
        name="Megatron",
        sharding=_megatron_sharding,
        findings=megatron_findings,
        trained_bytes=trained_bytes,
        legal_orders=legal_orders,
        weights="as they compute",
    ),
    "archon": _ARCHON,
    "fsdp": replace(_ARCHON, name="fsdp"),
}
