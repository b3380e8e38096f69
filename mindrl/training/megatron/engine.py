"""The Megatron-core engine of one model: reads sequences, and learns if it has an optimizer.

Shapes: B sequences of this data-parallel rank, T positions, S tokens of a pack, H hidden size, K
outputs of the head for each token.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import cycle, islice

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker
from torch import Tensor, nn

from mindrl.algorithms.losses import BatchT, Loss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.sequences import Sequences
from mindrl.models.adapters import adapter_sharding, factor_shapes
from mindrl.models.decoder import Head, padded_vocab_size
from mindrl.models.description import ModelDescription
from mindrl.models.sharding import Sharding
from mindrl.observability.trace import span
from mindrl.platform.determinism import deterministic_gradients
from mindrl.training.engine import Batch, StatePart
from mindrl.training.first_weights import first_factors, first_weights
from mindrl.training.logprobs import Vocabulary
from mindrl.training.megatron.adapters import ModelAdapters, put_adapters
from mindrl.training.megatron.model import (
    ModelSettings,
    build_model,
    head_weight,
    transformer_config,
)
from mindrl.training.megatron.optimizer_slices import state_slices
from mindrl.training.megatron.passes import forward_backward
from mindrl.training.megatron.training_state import TrainingState
from mindrl.training.megatron.weights import (
    check_table,
    local_tensors,
    made_tensors,
    mark_parameters,
)
from mindrl.training.packs import Pack, PackRules
from mindrl.training.reading import HeadReader, UpdatePass
from mindrl.training.rows import cut_by_rows, read_after_last, without_targets
from mindrl.training.state_slice import ReadState, StateSlice, take_over


class MegatronEngine:
    """This rank's part of a model; see `TrainingEngine`."""

    def __init__(
        self,
        folder: str,
        settings: ModelSettings,
        known: tuple[ModelDescription, Sharding],
        *,
        updates: int | None = None,
        head_seed: int | None = None,
        source: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Build the model on its device and load its weights.

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
        self.folder = folder
        self.settings = settings
        self.head: Head = settings.head
        self.device_type = settings.device_type
        self.description, self.sharding = known
        self.config = transformer_config(self.description, settings)
        with settings.groups.active():
            self.chunks: list[nn.Module] = build_model(self.description, self.config, settings)
        self.table = self.sharding.table(dist.get_rank())
        check_table(self.chunks, self.table)
        random_head = None if head_seed is None else (self.description.hidden_size, head_seed)
        whence = folder if source is None else source
        first_weights(self.local_tensors(), self.table, whence, random_head)
        self.adapters = self._adapters()
        for chunk in self.chunks:
            mark_parameters(chunk)
        self.training_state: TrainingState | None = None
        if updates is not None:
            with settings.groups.active():
                self.training_state = TrainingState(self.chunks, self.config, settings, updates)

    def _adapters(self) -> ModelAdapters | None:
        """Put adapters on the model; None if its weights are trained."""
        low_rank = self.settings.low_rank
        if low_rank is None:
            return None
        sharding = adapter_sharding(self.sharding, low_rank)
        with self.settings.groups.active():
            adapters = put_adapters(self.chunks, self.table, sharding, low_rank)
        shapes = factor_shapes(self.description, low_rank)
        source: str | int = self.settings.adapter_folder or self.settings.training.seed
        first_factors(adapters.tensors(), adapters.table, shapes, source)
        return adapters

    def local_tensors(self) -> dict[str, Tensor]:
        """Return this rank's weights by their local names, in the shapes of its table."""
        return local_tensors(self.chunks, self.table)

    def state(self, part: StatePart) -> Iterator[Tensor]:
        """Yield the tensors of one part of the state; several may share a storage."""
        if self.training_state is not None:
            return self.training_state.state(part)
        return iter(self.local_tensors().values() if part is StatePart.PARAMETERS else ())

    def state_slices(self) -> Iterator[StateSlice]:
        """Yield the checkpoint state of this rank: see `TrainingEngine`."""
        table = self.table if self.adapters is None else self.adapters.table
        with self.settings.groups.active():
            if self.training_state is None:
                return iter(list(state_slices(made_tensors(self.chunks), table, None)))
            return iter(list(self.training_state.slices(table)))

    @property
    def optimizer(self) -> MegatronOptimizer | None:
        """Megatron's optimizer, or None for a model that does not learn."""
        return None if self.training_state is None else self.training_state.optimizer

    @property
    def updates(self) -> int:
        """Optimizer steps taken so far."""
        return 0 if self.training_state is None else self.training_state.updates

    @torch.no_grad()
    def restore(self, updates: int, read: ReadState) -> None:
        """Load weights and moments: see `TrainingEngine`."""
        slices = () if self.training_state is None else self.state_slices()
        if self.adapters is None:
            take_over(read, self.local_tensors(), self.table, slices)
        else:
            take_over(read, self.adapters.tensors(), self.adapters.table, slices)
        if self.training_state is not None:
            self.training_state.updates = updates

    @torch.no_grad()
    def forward(
        self, sequences: Sequences, micro_batching: MicroBatching, *, at_end: bool = False
    ) -> tuple[Tensor, ...] | None:
        """Return the head's output for each response token: see `TrainingEngine`."""
        rows_of, parts = cut_by_rows(sequences, micro_batching)
        if at_end:
            parts = [read_after_last(part) for part in parts]

        def no_loss(pack: Pack[Sequences], hidden_1SH: Tensor) -> tuple[Tensor, Tensor]:
            read_KBT = torch.stack(self._reading.read(pack, hidden_1SH, self._head_weight()))
            return torch.zeros((), device=hidden_1SH.device), read_KBT

        with self.settings.groups.active():
            found = forward_backward(self.chunks, self.packs(parts), no_loss, forward_only=True)
            if not parallel_state.is_pipeline_last_stage():
                return None
            return self._reading.joined(found, rows_of, sequences.tokens_BT.size(1) + at_end)

    def train_step(
        self,
        minibatch: BatchT,
        micro_batching: MicroBatching,
        loss: Loss[BatchT],
        *,
        keep: Callable[[tuple[Tensor, ...]], None] | None = None,
    ) -> dict[str, float]:
        """Take one optimizer step on this rank's share of a minibatch: see `TrainingEngine`.

        The loss is the weighted sum of the token losses: neither the cut into micro-batches nor
        the number of ranks changes the gradient.
        """
        training_state = self._learning
        with self.settings.groups.active():
            training_state.zero_gradients()
            rows_of, parts = cut_by_rows(minibatch, micro_batching)
            packs = self.packs(parts)
            # Undo Megatron's averages over micro-batches and replicas: the loss is a weighted sum.
            undo_averages = len(packs) * parallel_state.get_data_parallel_world_size()
            update = UpdatePass(self._reading, loss, keeps=keep is not None)

            def terms_of(
                pack: Pack[BatchT], hidden_1SH: Tensor
            ) -> tuple[Tensor, dict[str, Tensor]]:
                terms = update.terms(pack, hidden_1SH, self._head_weight())
                return terms.loss * undo_averages, terms.metrics

            with deterministic_gradients(), self._dropping():
                found = forward_backward(training_state.chunks, packs, terms_of, forward_only=False)
            if keep is not None and update.kept:
                keep(self._reading.joined(update.kept, rows_of, minibatch.tokens_BT.size(1)))
            with span("optimizer step"):
                step = training_state.step(update.losses)
            metrics = self._reading.total(found) if found else {}
            return metrics | self._balance(len(packs)) | step

    def _dropping(self) -> AbstractContextManager[None]:
        """Enable the adapters' dropout, with another seed for each update and replica."""
        if self.adapters is None:
            return nullcontext()
        replica = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        drawn = (self.settings.training.seed, self.updates, replica)
        return self.adapters.dropping(zlib.crc32(repr(drawn).encode()))

    @property
    def _learning(self) -> TrainingState:
        assert self.training_state is not None, "this model never changes"
        return self.training_state

    def packs(self, parts: Sequence[Batch]) -> list[Pack[Batch]]:
        """Lay out micro-batches, plus the empty ones that the layout needs. A collective.

        Ranks that share experts exchange tokens in every micro-batch, so all need the same number,
        and an interleaved pipeline needs a multiple of its stages. Groups must be active.
        """
        layout = self.settings.layout
        count = len(parts)
        if self.description.moe is not None and layout.ep * layout.etp > 1:
            most = torch.tensor(count, device=self.device_type)
            group = parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
            dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
            count = int(most)
        if layout.vpp > 1:
            count += -count % layout.pp
        rules = PackRules(
            removes_padding=self.settings.removes_padding,
            cp=layout.cp,
            cp_rank=parallel_state.get_context_parallel_rank(),
            # Sequence parallelism cuts the tokens evenly between the tensor-parallel ranks.
            tokens_multiple=layout.cp * (layout.tp if self.config.sequence_parallel else 1),
            device_type=self.device_type,
        )
        idle = islice(cycle(self._idle(parts)), count - len(parts))
        return [Pack.of(part, rules) for part in (*parts, *idle)]

    @cached_property
    def _reading(self) -> HeadReader:
        """The head reader of the last stage. Groups must be active at the first access."""
        layout = self.settings.layout
        rows = padded_vocab_size(self.description, layout.tp) // layout.tp
        return HeadReader(
            head=self.head,
            vocabulary=Vocabulary(
                size=self.description.vocab_size,
                first_token=parallel_state.get_tensor_model_parallel_rank() * rows,
                group=parallel_state.get_tensor_model_parallel_group(),
                temperature=self.settings.temperature,
                chunk_tokens=self.settings.logprob_chunk_tokens,
            ),
            context=parallel_state.get_context_parallel_group() if layout.cp > 1 else None,
            replicas=parallel_state.get_data_parallel_group(with_context_parallel=True),
        )

    def _head_weight(self) -> Tensor:
        return head_weight(self.chunks[-1])

    def _balance(self, micro_batches: int) -> dict[str, float]:
        """Return the step's expert balance loss, if it is used, and reset Megatron's tracker.

        Mean over layers, micro-batches and replicas; 1 means that tokens are spread evenly. A
        collective over all ranks.
        """
        moe = self.description.moe
        if moe is None or not self.settings.learning.moe_aux_loss_coeff:
            return {}
        tracker = get_moe_layer_wise_logging_tracker()
        total = torch.zeros((), device=self.device_type)
        # A stage without experts has no entry.
        if "load_balancing_loss" in tracker:
            total += tracker["load_balancing_loss"]["values"].sum() / micro_batches
        # Each rank has the part of its own tokens and of its stage's layers.
        dist.all_reduce(total)
        # Cleared, not zeroed: the next model may have another number of layers.
        tracker.clear()
        layers = self.description.num_hidden_layers - len(moe.dense_layers)
        replicas: int = parallel_state.get_data_parallel_world_size()
        return {"moe_aux_loss": float(total) / (replicas * layers)}

    def _idle(self, parts: Sequence[Batch]) -> list[Batch]:
        """Return the micro-batches to repeat, with no token requested."""
        if self.settings.learning.moe_aux_loss_coeff and torch.is_grad_enabled():
            # The balance loss is a mean over micro-batches: repeating all of them does not change
            # it.
            return [without_targets(part) for part in parts]
        return [without_targets(parts[0].rows(parts[0].lengths_B.argmin()[None]))]
