"""Control flow that training engines share; an engine adds only the steps specific to its library.

Shapes: B sequences of this data-parallel rank, T positions, S tokens of a pack, H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.algorithms.losses import BatchT, Loss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.sequences import Sequences
from mindrl.models.adapters import factor_shapes
from mindrl.models.decoder import Head, padded_vocab_size
from mindrl.models.description import ModelDescription
from mindrl.models.sharding import Sharding
from mindrl.observability.trace import span
from mindrl.platform.determinism import deterministic_gradients
from mindrl.training.engine import Adapters, Batch, StatePart
from mindrl.training.first_weights import first_factors, first_weights
from mindrl.training.logprobs import Vocabulary
from mindrl.training.packs import Pack, PackRules
from mindrl.training.reading import ForwardPass, HeadReader, Reader, UpdatePass
from mindrl.training.routes import RecordedRoutes, RouteGroups, RouteStore, SampledRoutes
from mindrl.training.rows import cut_by_rows, read_after_last, without_targets
from mindrl.training.settings import EngineSettings
from mindrl.training.state_slice import ReadState, StateSlice, take_over


class LearningState(Protocol):
    """Gradients, optimizer and schedule of a trained model."""

    @property
    def optimizer(self) -> object:
        """The library's optimizer."""

    @property
    def updates(self) -> int:
        """Optimizer steps taken so far."""

    def zero_gradients(self) -> None:
        """Zero the gradients at the start of a step."""

    def step(self, losses: Sequence[Tensor]) -> dict[str, float]:
        """Take the optimizer step, or skip it if a loss or the gradient norm is not finite.

        A collective over all ranks: if one rank must skip the step, all do. `losses` are this
        rank's, with their metrics. Returns metrics: see `TrainingEngine.train_step`.
        """

    def state(self, part: StatePart) -> Iterator[Tensor]:
        """Yield the tensors of one part of the state."""

    def restore(self, updates: int) -> None:
        """Set the number of updates taken; the moments keep their values."""

    def complete_weights(self) -> None:
        """Wait until the last update's weights are whole. A collective over all ranks."""


class HeadGroups(NamedTuple):
    """Ranks that read a head together."""

    tensor: dist.ProcessGroup
    """Ranks that share the vocabulary."""
    context: dist.ProcessGroup | None
    """Ranks that share the tokens of each sequence; None for a single rank."""
    replicas: dist.ProcessGroup
    """Ranks that read other sequences, or other tokens of the same sequences."""


SettingsT = TypeVar("SettingsT", bound=EngineSettings)
LearningT = TypeVar("LearningT", bound=LearningState)


class EngineSkeleton(ABC, Generic[SettingsT, LearningT]):
    """This rank's part of a model; see `TrainingEngine`."""

    adapters: Adapters | None = None

    def __init__(
        self,
        folder: str,
        settings: SettingsT,
        known: tuple[ModelDescription, Sharding],
        *,
        updates: int | None = None,
        head_seed: int | None = None,
        source: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Build the model on its device and load its weights. A collective over all its ranks.

        Args:
            folder: Hugging Face folder.
            settings: Layout and numerics.
            known: The model's description and its sharding.
            updates: Optimizer steps of the whole run; None for a model that never changes.
            head_seed: Seed of a value head that the folder lacks; None refuses such a folder.
            source: Local tensors of a model with the same folder and layout; None reads files.

        Raises:
            ModelError: A file or tensor of the folder is missing, unreadable or of another shape.
        """
        self.folder, self.settings = folder, settings
        self.head: Head = settings.head
        self.device_type = settings.device_type
        self.description, self.sharding = known
        random_head = None if head_seed is None else (self.description.hidden_size, head_seed)
        whence = folder if source is None else source
        with self.active():
            self.table = self.sharding.table(dist.get_rank())
            self._build()
            first_weights(self.local_tensors(), self.table, whence, random_head)
            self.learning = self._prepared(updates)
            self.routes = self._routes()

    def active(self) -> AbstractContextManager[None]:
        """Make the model's ranks the default process group in the body."""
        world = self.settings.world
        return nullcontext() if world is None else world.active()

    def state(self, part: StatePart) -> Iterator[Tensor]:
        """Yield the tensors of one part of the state; several may share a storage."""
        if self.learning is not None:
            return self.learning.state(part)
        return iter(self._weights() if part is StatePart.PARAMETERS else ())

    def complete_weights(self) -> None:
        """Wait until the last update's weights are whole: see `TrainingEngine`."""
        if self.learning is not None:
            self.learning.complete_weights()

    def _fill_factors(self, adapters: Adapters) -> None:
        """Load the first factors of adapters from their folder, or draw them."""
        shapes = factor_shapes(self.description, adapters.low_rank)
        source: str | int = self.settings.adapter_folder or self.settings.training.seed
        first_factors(adapters.tensors(), adapters.table, shapes, source)

    def _weights(self) -> Sequence[Tensor]:
        """Return all tensors that hold weights."""
        return [*self.local_tensors().values()]

    @property
    def optimizer(self) -> object | None:
        """The library's optimizer; None for a model that is not trained."""
        return None if self.learning is None else self.learning.optimizer

    @property
    def updates(self) -> int:
        """Optimizer steps taken so far."""
        return 0 if self.learning is None else self.learning.updates

    def state_slices(self) -> Iterator[StateSlice]:
        """Yield the checkpoint state of this rank: see `TrainingEngine`."""
        with self.active():
            return iter([*self._state_slices()])

    @torch.no_grad()
    def restore(self, updates: int, read: ReadState) -> None:
        """Load weights and moments: see `TrainingEngine`."""
        slices = () if self.learning is None else self.state_slices()
        if self.adapters is None:
            take_over(read, self.local_tensors(), self.table, slices)
        else:
            take_over(read, self.adapters.tensors(), self.adapters.table, slices)
        if self.learning is not None:
            self.learning.restore(updates)

    @torch.no_grad()
    def forward(
        self, sequences: Sequences, micro_batching: MicroBatching, *, at_end: bool = False
    ) -> tuple[Tensor, ...] | None:
        """Return the head's output for each response token: see `TrainingEngine`."""
        routes = None if sequences.route_keys_B is None else self.routes
        with self.active():
            if routes is not None:
                sequences = routes.before_read(sequences)
            rows_of, parts = self._cut(sequences, micro_batching, shares_prompts=not at_end)
            if at_end:
                parts = [read_after_last(part) for part in parts]
            packs, reading = self.packs(parts), ForwardPass(self._reading)
            found = self._run_forward(packs, reading.outputs_of)
            if routes is not None:
                routes.after_read(packs[: len(parts)])
            if not found:
                return None
            whole_BT = self._reading.joined(found, rows_of, sequences.tokens_BT.size(1) + at_end)
            return (whole_BT, *reading.joined(rows_of))

    def train_step(
        self,
        minibatch: BatchT,
        micro_batching: MicroBatching,
        loss: Loss[BatchT],
        *,
        keep: Callable[[Tensor], None] | None = None,
    ) -> dict[str, float]:
        """Take one optimizer step on this rank's share of a minibatch: see `TrainingEngine`.

        The loss is the weighted sum of the token losses: neither the cut into micro-batches nor
        the number of ranks changes the gradient.
        """
        learning = self.learning
        assert learning is not None, "this model never changes"
        with self.active():
            if self.routes is not None:
                minibatch = self.routes.with_routes(minibatch)
            rows_of, parts = self._cut(minibatch, micro_batching)
            learning.zero_gradients()
            packs = self.packs(parts, learns=True)
            update = UpdatePass(self._reading, loss, keeps=keep is not None)
            with deterministic_gradients():
                self._run_update(learning, packs, update.loss_of)
            if keep is not None and update.kept:
                keep(self._reading.joined(update.kept, rows_of, minibatch.tokens_BT.size(1)))
            with span("optimizer step"):
                step = learning.step(update.losses)
            metrics = self._reading.total(update.metrics) if update.metrics else {}
            routed = {} if self.routes is None else self.routes.metrics(packs)
            return metrics | self._balance(len(packs)) | routed | step

    def packs(self, parts: Sequence[Batch], *, learns: bool = False) -> list[Pack[Batch]]:
        """Lay out micro-batches, plus the idle ones that the layout needs. A collective.

        The model must be active.
        """
        layout, context = self.settings.layout, self._reading.context
        rules = PackRules(
            removes_padding=self.settings.removes_padding,
            shares_prompts=self.settings.shares_prompts,
            cp=layout.cp,
            cp_rank=0 if context is None else context.rank(),
            ring=layout.ring,
            tokens_multiple=layout.cp * self._token_ranks,
            device_type=self.device_type,
        )
        count = self._pack_count(len(parts), learns=learns)
        packs = [Pack.of(part, rules) for part in parts]
        if count > len(parts):
            # The shortest sequence of a part, with no token requested.
            shortest = parts[0].rows(parts[0].lengths_B.argmin()[None])
            idle = replace(Pack.of(without_targets(shortest), rules), is_idle=True)
            packs += [idle] * (count - len(parts))
        if self.routes is None:
            return packs
        return [replace(pack, routes=self.routes.of_pack(pack)) for pack in packs]

    def _cut(
        self, sequences: Batch, micro_batching: MicroBatching, *, shares_prompts: bool = True
    ) -> tuple[list[list[int]], list[Batch]]:
        """Return the rows of each micro-batch, and the micro-batches.

        Sequences that are only read after their ends share no prompt.
        """
        shares_prompts = shares_prompts and self.settings.shares_prompts
        return cut_by_rows(sequences, micro_batching, shares_prompts=shares_prompts)

    @abstractmethod
    def local_tensors(self) -> dict[str, Tensor]:
        """Return this rank's weights by their local names, in the shapes of its table."""

    @abstractmethod
    def _build(self) -> None:
        """Build the model on its device, with any weights. A collective."""

    @abstractmethod
    def _prepared(self, updates: int | None) -> LearningT | None:
        """Complete the loaded model; return its learning state, or None if it never changes."""

    @abstractmethod
    def _state_slices(self) -> Iterator[StateSlice]:
        """Yield the state that a checkpoint needs, as far as this rank keeps it."""

    @abstractmethod
    def _run_forward(self, packs: Sequence[Pack[Any]], read: Reader) -> list[Tensor]:
        """Run packs forward; return the results of `read`, none on ranks without the head."""

    @abstractmethod
    def _run_update(self, learning: LearningT, packs: Sequence[Pack[Any]], loss: Reader) -> None:
        """Run packs forward and backward; the rank with the head calls `loss` in their order."""

    @abstractmethod
    def _pack_count(self, count: int, *, learns: bool) -> int:
        """Return the number of packs that the layout needs if this rank has `count`.

        A collective.
        """

    @abstractmethod
    def _balance(self, packs: int) -> dict[str, float]:
        """Return the step's expert balance loss, if it is used. A collective over all ranks.

        Mean over layers, packs and replicas; 1 means that tokens are spread evenly.
        """

    @abstractmethod
    def _follow_routes(self) -> list[int]:
        """Let the routers of this rank read and write the routes of packs; return their layers."""

    @abstractmethod
    def _route_groups(self) -> RouteGroups:
        """Return the ranks with routes of the same layers. A collective over all ranks."""

    @abstractmethod
    def _head_groups(self) -> HeadGroups:
        """Return the ranks that read the head together."""

    @property
    @abstractmethod
    def _token_ranks(self) -> int:
        """Number of tensor-parallel ranks that share the tokens of hidden states."""

    def _routes(self) -> RouteStore | None:
        """Return the store of replayed routes, if any. A collective over all ranks."""
        moe, settings = self.description.moe, self.settings
        if moe is None or settings.router_replay == "none":
            return None
        layers = range(self.description.num_hidden_layers)
        routed = [layer for layer in layers if layer not in moe.dense_layers]
        store = RecordedRoutes if settings.router_replay == "R2" else SampledRoutes
        return store(
            moe=moe,
            layers=tuple(routed.index(layer) for layer in self._follow_routes()),
            groups=self._route_groups(),
            device_type=self.device_type,
            shares_prompts=settings.shares_prompts,
        )

    @cached_property
    def _reading(self) -> HeadReader:
        """The head's reader. The model must be active at the first access."""
        model, settings, groups = self.description, self.settings, self._head_groups()
        rows = padded_vocab_size(model, settings.layout.tp) // settings.layout.tp
        return HeadReader(
            head=self.head,
            vocabulary=Vocabulary(
                size=model.vocab_size,
                first_token=groups.tensor.rank() * rows,
                group=groups.tensor,
                temperature=settings.temperature,
                chunk_tokens=settings.logprob_chunk_tokens,
                one_operator=settings.batch_invariant and groups.tensor.size() == 1,
            ),
            context=groups.context,
            replicas=groups.replicas,
            candidates=settings.candidates,
        )
