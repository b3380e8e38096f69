"""The PyTorch-native engine of one model: reads sequences, and learns if it has an optimizer.

Shapes: B sequences of this data-parallel rank, T positions, S tokens of a pack, H hidden size, K
outputs of the head for each token.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mindrl.algorithms.losses import BatchT, Loss
from mindrl.batch.balance import MicroBatching
from mindrl.batch.sequences import Sequences
from mindrl.models.decoder import EMBEDDING, HEAD, Head, padded_vocab_size
from mindrl.models.description import ModelDescription
from mindrl.models.sharding import Sharding
from mindrl.observability.trace import span
from mindrl.platform.determinism import deterministic_gradients
from mindrl.training.archon.chunks import chunks_of_rank
from mindrl.training.archon.learning import Learning
from mindrl.training.archon.meshes import meshes_of
from mindrl.training.archon.network import Network, NetworkSettings, StagePart
from mindrl.training.archon.own_network import OwnNetwork
from mindrl.training.archon.pipeline import Hidden, Pipeline
from mindrl.training.engine import Adapters, Batch, StatePart
from mindrl.training.first_weights import first_weights
from mindrl.training.logprobs import Vocabulary
from mindrl.training.packs import Pack, PackRules
from mindrl.training.reading import HeadReader, UpdatePass
from mindrl.training.rows import cut_by_rows, read_after_last, without_targets
from mindrl.training.settings import EngineSettings
from mindrl.training.state_slice import ReadState, StateKind, StateSlice, take_over


class ArchonEngine:
    """Trains this rank's part of a model; see `TrainingEngine`."""

    adapters: Adapters | None = None

    def __init__(
        self,
        folder: str,
        settings: EngineSettings,
        known: tuple[ModelDescription, Sharding],
        *,
        updates: int | None = None,
        head_seed: int | None = None,
        source: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Build the model on its device and load its weights. A collective over all ranks.

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
        self.meshes = meshes_of(
            settings.layout, settings.device_type, settings.learning.archon.fsdp_size
        )
        self.head: Head = settings.head
        self.device_type = settings.device_type
        self.description, self.sharding = known
        self.table = self.sharding.table(dist.get_rank())
        self.place = settings.layout.dense_order.coordinates[dist.get_rank()]
        self.networks = chunks_of_rank(
            self.description, settings, self.meshes, self.place["pp"], self.network_of
        )
        self.balance = next(iter(self.networks.values())).balance
        self.twins = dict(chain.from_iterable(n.twins().items() for n in self.networks.values()))
        self.pipeline = self._piped()
        self._reading = self._reader()
        self.ends = self.meshes.ends() if self._is_head_a_copy else None
        self._fill(head_seed, source)
        self.learning: Learning | None = None
        if updates is not None:
            parameters = self._parameters()
            copies = {name: self._copies(name, each) for name, each in parameters.items()}
            self.learning = Learning(parameters, copies, settings.learning, updates)

    def local_tensors(self) -> dict[str, Tensor]:
        """Return this rank's weights by their local names, in the shapes of its table."""
        parameters = self._parameters()
        return {name: parameters[name].to_local().detach() for name in self.table}

    def state(self, part: StatePart) -> Iterator[Tensor]:
        """Yield the tensors of one part of the state; several may share a storage."""
        if self.learning is not None:
            return self.learning.state(part)
        weights = [each.to_local().detach() for each in self._parameters().values()]
        return iter(weights if part is StatePart.PARAMETERS else ())

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """AdamW, or None for a model that does not learn."""
        return None if self.learning is None else self.learning.optimizer

    @property
    def updates(self) -> int:
        """Optimizer steps taken so far."""
        return 0 if self.learning is None else self.learning.updates

    def state_slices(self) -> Iterator[StateSlice]:
        """Yield the checkpoint state of this rank: see `TrainingEngine`."""
        local, parameters = self.local_tensors(), self._parameters()
        for index, (name, entry) in enumerate(self.table.items()):
            kept: dict[StateKind, Tensor] = {"weight": local[name]}
            if self.learning is not None:
                moments = self.learning.moments(self.learning.leaves[name])
                kept |= {"exp_avg": moments["exp_avg"], "exp_avg_sq": moments["exp_avg_sq"]}
            is_ours = self._is_ours(name, parameters[name], index)
            for placement in entry.placements:
                for kind, stored in kept.items():
                    yield StateSlice(
                        tensor=placement.tensor,
                        kind=kind,
                        box=placement.source,
                        stored=stored,
                        run=(0, stored.numel()),
                        shape=entry.shape,
                        local=placement.local,
                        axes=placement.axes,
                        is_ours=is_ours,
                    )

    @torch.no_grad()
    def restore(self, updates: int, read: ReadState) -> None:
        """Load weights and moments: see `TrainingEngine`."""
        slices = () if self.learning is None else self.state_slices()
        take_over(read, self.local_tensors(), self.table, slices)
        if self.learning is not None:
            self.learning.restore(updates)

    @torch.no_grad()
    def forward(
        self, sequences: Sequences, micro_batching: MicroBatching, *, at_end: bool = False
    ) -> tuple[Tensor, ...] | None:
        """Return the head's output for each response token: see `TrainingEngine`."""
        rows_of, parts = cut_by_rows(sequences, micro_batching)
        if at_end:
            parts = [read_after_last(part) for part in parts]

        def read(pack: Pack[Sequences], hidden_1SH: Tensor, weight: Tensor) -> Tensor:
            return torch.stack(self._reading.read(pack, hidden_1SH, weight))

        found = self.pipeline.forward(self.packs(parts), read)
        if not self.pipeline.has_head:
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
        learning = self.learning
        assert learning is not None, "this model never changes"
        learning.zero_gradients()
        rows_of, parts = cut_by_rows(minibatch, micro_batching)
        if self.balance is not None:
            self.balance.begin(len(parts))
        update = UpdatePass(self._reading, loss, keeps=keep is not None)
        metrics = []

        def loss_of(pack: Pack[BatchT], hidden_1SH: Tensor, weight: Tensor) -> Tensor:
            terms = update.terms(pack, hidden_1SH, weight)
            metrics.append(terms.metrics)
            return terms.loss

        with deterministic_gradients():
            self.pipeline.update(self.packs(parts, learns=True), loss_of)
        if keep is not None and self.pipeline.has_head:
            keep(self._reading.joined(update.kept, rows_of, minibatch.tokens_BT.size(1)))
        if self._is_head_a_copy and {EMBEDDING, HEAD} & learning.leaves.keys():
            learning.join((EMBEDDING, HEAD), self.ends)
        with span("optimizer step"):
            step = learning.step(update.losses)
        found = self._reading.total(metrics) if metrics else {}
        return found | self._balanced() | step

    def packs(self, parts: Sequence[Batch], *, learns: bool = False) -> list[Pack[Batch]]:
        """Lay out micro-batches, plus idle ones until all ranks have as many. A collective.

        FSDP2 gathers weights over ranks in every pass, and an update needs the number of packs that
        its pipeline schedule supports.
        """
        layout, most = self.settings.layout, torch.tensor(len(parts), device=self.device_type)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        count = self.pipeline.packs_of_update(int(most)) if learns else int(most)
        rules = PackRules(
            removes_padding=self.settings.removes_padding,
            cp=layout.cp,
            cp_rank=self.place.get("cp", 0),
            tokens_multiple=layout.cp * self.pipeline.hidden.ranks,
            device_type=self.device_type,
        )
        shortest = without_targets(parts[0].rows(parts[0].lengths_B.argmin()[None]))
        idle = replace(Pack.of(shortest, rules), is_idle=True)
        return [*(Pack.of(part, rules) for part in parts), *repeat(idle, count - len(parts))]

    def network_of(self, part: StagePart, settings: NetworkSettings) -> Network:
        """Return a part of the model on the meta device."""
        other = self.description.other
        if other and other.own:
            return OwnNetwork(self.folder, self.description, part, settings)
        return Network(self.description, part, settings)

    def _piped(self) -> Pipeline:
        layout, settings = self.settings.layout, self.settings
        is_cut = next(iter(self.networks.values())).parallel.is_cut
        return Pipeline(
            networks=self.networks,
            layout=layout,
            schedule=settings.learning.archon.schedule(layout.vpp),
            group=self.meshes.pipeline,
            hidden=Hidden(
                size=self.description.hidden_size,
                dtype=torch.bfloat16 if settings.training.bf16 else torch.float32,
                ranks=layout.tp if is_cut else 1,
            ),
            device_type=settings.device_type,
        )

    def _reader(self) -> HeadReader:
        model, settings = self.description, self.settings
        rows = padded_vocab_size(model, settings.layout.tp) // settings.layout.tp
        return HeadReader(
            head=self.head,
            vocabulary=Vocabulary(
                size=model.vocab_size,
                first_token=self.place["tp"] * rows,
                group=self.meshes.tensor.get_group(),
                temperature=settings.temperature,
                chunk_tokens=settings.logprob_chunk_tokens,
            ),
            context=self.meshes.context,
            replicas=self.meshes.replicas,
        )

    def _balanced(self) -> dict[str, float]:
        """Return the experts' balance loss of the step, if it is used. A collective."""
        moe = self.description.moe
        if moe is None or self.balance is None:
            return {}
        return self.balance.metrics(self.description.num_hidden_layers - len(moe.dense_layers))

    @torch.no_grad()
    def _fill(self, head_seed: int | None, source: Mapping[str, Tensor] | None) -> None:
        """Load the weights from files or from another model."""
        parameters = self._parameters()
        for name, parameter in parameters.items():
            found, entry = tuple(parameter.to_local().shape), self.table.get(name)
            wanted = entry.shape if entry else found if 0 in found else None
            assert found == wanted, f"{name}: the network has {found}, the table has {wanted}"
        random_head = None if head_seed is None else (self.description.hidden_size, head_seed)
        whence = self.folder if source is None else source
        first_weights(self.local_tensors(), self.table, whence, random_head)

    def _parameters(self) -> dict[str, DTensor]:
        each = (network.named_parameters() for network in self.networks.values())
        found = dict(chain.from_iterable(each))
        assert all(isinstance(each, DTensor) for each in found.values()), "weights are borrowed"
        return found  # type: ignore[return-value]

    def _is_ours(self, name: str, parameter: DTensor, index: int) -> bool:
        """Return whether this rank writes a tensor that several ranks hold, in turns by index."""
        if name == HEAD and self._is_head_a_copy:
            return False
        twins, mesh = self.twins.get(name), parameter.device_mesh
        return (twins is None or twins.rank() == 0) and all(
            mesh.get_local_rank(dim) == index % mesh.size(dim)
            for dim, placement in enumerate(parameter.placements)
            if placement.is_replicate()
        )

    def _copies(self, name: str, parameter: DTensor) -> int:
        """Return how many ranks hold the same part of a parameter."""
        twins, mesh = self.twins.get(name), parameter.device_mesh
        # A dimension cut by both FSDP2 and tensor parallelism is not `Shard`, but not a copy
        # either.
        sizes = [
            mesh.size(dim)
            for dim, placement in enumerate(parameter.placements)
            if placement.is_replicate()
        ]
        ends = 2 if self._is_head_a_copy and name in (EMBEDDING, HEAD) else 1
        return prod(sizes) * ends * (1 if twins is None else twins.size())

    @property
    def _is_head_a_copy(self) -> bool:
        """Whether the last chunk has a copy of the embedding."""
        is_tied = self.description.tie_word_embeddings and self.head == "vocabulary"
        return is_tied and self.settings.layout.pp > 1
