"""Tables, bytes and rules of each training engine, as the planner needs them.

Imports no torch, directly or indirectly.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, Protocol

from mindrl.config.backends import TRAINING_BACKEND, TrainingBackend
from mindrl.config.finding import Finding
from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder
from mindrl.models.adapters import AdapterShardings, LowRank, adapter_sharding
from mindrl.models.decoder import DType, Head
from mindrl.models.description import ModelDescription
from mindrl.models.legality import Keys
from mindrl.models.sharding import Sharding
from mindrl.training.archon.legality import archon_findings, archon_orders
from mindrl.training.archon.sharding import archon_factors, archon_sharding
from mindrl.training.archon.state_bytes import archon_borrowed_bytes, archon_trained_bytes
from mindrl.training.layer_copies import LayerCopies
from mindrl.training.megatron.legality import legal_orders, megatron_findings
from mindrl.training.megatron.sharding import megatron_sharding
from mindrl.training.megatron.state_bytes import trained_bytes
from mindrl.training.trained_bytes import TrainedBytes


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How an engine stores a model; each engine reads the fields that it knows."""

    dtype: DType
    """Dtype of the weights; see `EnginePlanning.weights`."""
    head: Head = "vocabulary"
    grouped_experts: bool = False
    fsdp_size: int | None = None


class _TrainedBytes(Protocol):
    def __call__(
        self,
        sharding: Sharding,
        layout: TrainLayout,
        *,
        distributed_optimizer: bool,
        bucket_size: int | None = None,
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
        low_rank: LowRank | None = None,
    ) -> int: ...


class _Adapters(Protocol):
    def __call__(
        self,
        model: ModelDescription,
        layout: TrainLayout,
        low_rank: LowRank,
        *,
        base: Sharding,
        fsdp_size: int | None = None,
    ) -> AdapterShardings: ...


@dataclass(frozen=True, kw_only=True)
class EnginePlanning:
    """Properties of an engine that are known without running it."""

    name: str
    """Name for use in a sentence."""
    sharding: Callable[[ModelDescription, TrainLayout, Storage], Sharding]
    """Returns which rank holds which part of a model."""
    adapters: _Adapters
    """Returns which rank holds which part of adapters on a model of sharding `base`."""
    findings: Callable[[ModelDescription, TrainLayout, Keys], Iterable[Finding]]
    """Returns why the engine cannot build a model or cut it by a layout."""
    trained_bytes: _TrainedBytes
    """Returns the bytes that each rank allocates to train its part."""
    borrowed_bytes: _BorrowedBytes
    """Estimates the bytes of other ranks' weights and gradients on a rank during a pass."""
    copies: LayerCopies
    legal_orders: Callable[[RankOrder, int], Iterable[RankOrder]]
    """Returns the legal orders of a grid, given the engine's own order and the ranks per node."""
    recomputation: str
    """The `key=value` setting that recomputes all activations in the backward pass."""
    weights: Literal["as they compute", "float32"]
    """Dtype that weights are stored in."""

    def weights_dtype(self, dtype: DType) -> DType:
        """Return the dtype of the stored weights of a model that computes in `dtype`."""
        return "float32" if self.weights == "float32" else dtype


def planning_of(backend: TrainingBackend) -> EnginePlanning:
    """Return the planning data of a backend's engine."""
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
    layout: TrainLayout,  # noqa: ARG001 - the tables contain the sharing
    *,
    distributed_optimizer: bool,  # noqa: ARG001 - always on
    bucket_size: int | None = None,  # noqa: ARG001 - refused
) -> tuple[TrainedBytes, ...]:
    return archon_trained_bytes(sharding)


def _nothing_borrowed(
    model: ModelDescription,  # noqa: ARG001 - unused by design
    layout: TrainLayout,  # noqa: ARG001
    dtype: DType,  # noqa: ARG001
    *,
    head: Head,  # noqa: ARG001
    learns: bool,  # noqa: ARG001
    low_rank: LowRank | None = None,  # noqa: ARG001
) -> int:
    return 0


def _megatron_adapters(
    model: ModelDescription,  # noqa: ARG001 - the tables contain it
    layout: TrainLayout,  # noqa: ARG001
    low_rank: LowRank,
    *,
    base: Sharding,
    fsdp_size: int | None = None,  # noqa: ARG001 - of other engines
) -> AdapterShardings:
    return AdapterShardings(adapter_sharding(base, low_rank))


_ARCHON = EnginePlanning(
    name="archon",
    sharding=_archon_sharding,
    adapters=archon_factors,
    findings=archon_findings,
    trained_bytes=_archon_bytes,
    # Called for many settings of one layout.
    borrowed_bytes=cache(archon_borrowed_bytes),
    # All layers share sines and cosines; the sum over experts keeps its inputs.
    copies=LayerCopies(inner=4, rotation=0, weighted=1),
    legal_orders=archon_orders,
    recomputation="archon.ac_mode=full",
    weights="float32",
)
_ENGINES: Mapping[TrainingBackend, EnginePlanning] = {
    TRAINING_BACKEND: EnginePlanning(
        name="Megatron",
        sharding=_megatron_sharding,
        adapters=_megatron_adapters,
        findings=megatron_findings,
        trained_bytes=trained_bytes,
        borrowed_bytes=_nothing_borrowed,
        # Up is stored next to the gate and copied out.
        copies=LayerCopies(inner=5, rotation=4, weighted=0),
        legal_orders=legal_orders,
        recomputation="recompute_granularity=full",
        weights="as they compute",
    ),
    "archon": _ARCHON,
    "fsdp": replace(_ARCHON, name="fsdp"),
}
