"""What a plan asks of each training engine: its tables, bytes and rules.

Imports no torch, and neither does what it names.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, Protocol

from mindrl.config.backends import TRAINING_BACKEND, TrainingBackend
from mindrl.config.finding import Finding
from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder
from mindrl.models.decoder import DType, Head
from mindrl.models.description import ModelDescription
from mindrl.models.legality import Keys
from mindrl.models.sharding import Sharding
from mindrl.training.archon.legality import archon_findings, archon_orders
from mindrl.training.archon.sharding import archon_sharding
from mindrl.training.archon.state_bytes import archon_borrowed_bytes, archon_trained_bytes
from mindrl.training.layer_copies import LayerCopies
from mindrl.training.megatron.legality import legal_orders, megatron_findings
from mindrl.training.megatron.sharding import megatron_sharding
from mindrl.training.megatron.state_bytes import trained_bytes
from mindrl.training.trained_bytes import TrainedBytes


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


class _BorrowedBytes(Protocol):
    def __call__(
        self,
        model: ModelDescription,
        layout: TrainLayout,
        dtype: DType,
        *,
        head: Head,
        learns: bool,
    ) -> int: ...


@dataclass(frozen=True, kw_only=True)
class EnginePlanning:
    """What is known of an engine without running it."""

    name: str
    """In a sentence."""
    sharding: Callable[[ModelDescription, TrainLayout, Storage], Sharding]
    """Who holds what."""
    findings: Callable[[ModelDescription, TrainLayout, Keys], Iterable[Finding]]
    """What keeps it from building a model, or from cutting it by a layout."""
    trained_bytes: _TrainedBytes
    """What each rank allocates to train what it holds."""
    borrowed_bytes: _BorrowedBytes
    """By estimate what a rank has of others' weights and gradients during a pass."""
    copies: LayerCopies
    legal_orders: Callable[[RankOrder, int], Iterable[RankOrder]]
    """The orders that a grid can be given, by its own order and the ranks of a node."""
    recomputation: str
    """The key, with its value, that has the backward pass make all activations again."""
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
    layout: TrainLayout,  # noqa: ARG001 - the tables say what its ranks share
    *,
    distributed_optimizer: bool,  # noqa: ARG001 - it always is
) -> tuple[TrainedBytes, ...]:
    return archon_trained_bytes(sharding)


def _nothing_borrowed(
    model: ModelDescription,  # noqa: ARG001 - whichever it is
    layout: TrainLayout,  # noqa: ARG001
    dtype: DType,  # noqa: ARG001
    *,
    head: Head,  # noqa: ARG001
    learns: bool,  # noqa: ARG001
) -> int:
    return 0


_ARCHON = EnginePlanning(
    name="archon",
    sharding=_archon_sharding,
    findings=archon_findings,
    trained_bytes=_archon_bytes,
    # Asked for many settings of one layout.
    borrowed_bytes=cache(archon_borrowed_bytes),
    # All layers turn by the same sines and cosines; adding rows up keeps them.
    copies=LayerCopies(inner=4, rotation=0, weighted=1),
    legal_orders=archon_orders,
    recomputation="archon.ac_mode=full",
    weights="float32",
)
_ENGINES: Mapping[TrainingBackend, EnginePlanning] = {
    TRAINING_BACKEND: EnginePlanning(
        name="Megatron",
        sharding=_megatron_sharding,
        findings=megatron_findings,
        trained_bytes=trained_bytes,
        borrowed_bytes=_nothing_borrowed,
        # Up lies beside the gate, and is copied from there.
        copies=LayerCopies(inner=5, rotation=4, weighted=0),
        legal_orders=legal_orders,
        recomputation="recompute_granularity=full",
        weights="as they compute",
    ),
    "archon": _ARCHON,
    "fsdp": replace(_ARCHON, name="fsdp"),
}
