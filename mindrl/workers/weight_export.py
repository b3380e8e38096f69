"""Export of trained weights: each rank writes the files that it owns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

from mindrl.checkpoint.adapter_export import ExportedAdapters
from mindrl.checkpoint.adapter_folder import adapter_config
from mindrl.checkpoint.carried_files import SAME_TOKENIZER, RunTokenizer
from mindrl.checkpoint.export import (
    EXPORT_FILE,
    SHARD_BYTES,
    ExportedModel,
    HeadScope,
    check_sizes,
    file_tables,
    incomplete,
    new_files,
    new_folder,
    write_index,
    write_json,
    writing,
)
from mindrl.checkpoint.kept_tensors import names_of
from mindrl.checkpoint.stored_names import StoredNames
from mindrl.errors import OutputError
from mindrl.models.adapters import full_adapters
from mindrl.models.decoder import DType, logical_shapes
from mindrl.models.placement import ShardingTable, whole
from mindrl.models.sharding import Sharding
from mindrl.resharding.plan import Topology, plan_reshard
from mindrl.training.engine import Adapters, TrainingEngine
from mindrl.workers.weight_sync import TrainingWeights, WeightRoute

ResultT = TypeVar("ResultT")


@dataclass
class WeightExport:
    """Export of a trained model's weights to files."""

    model: TrainingEngine
    dtype: DType
    """Data type of the files; an engine may use another."""
    topology: Topology
    bucket_bytes: int
    """Maximum bytes of messages that a rank has in flight."""
    timeout_seconds: float
    """Longest wait for a peer."""
    name: str
    """Name of these weights, the same on all ranks and unique."""
    scores: HeadScope = "token"
    """What a value head scores; unused for a vocabulary."""
    tokenizer: RunTokenizer = SAME_TOKENIZER
    shard_bytes: int = SHARD_BYTES
    """Maximum bytes of a file."""
    exports: int = 0
    route: WeightRoute | None = None
    """Route of the last export."""

    def __post_init__(self) -> None:
        """Check the tokenizer on the rank that copies it, long before the first export.

        Raises:
            ModelError: A file of it is missing on this node.
        """
        with self.model.active():
            if dist.get_rank() == 0:
                self.tokenizer.check()

    def write(self, folder: Path, record: Mapping[str, object] | None = None) -> None:
        """Write the weights to a Hugging Face folder, by the ranks that share it with rank 0.

        A collective over the model's ranks. An older folder is replaced. `record` has further
        information about the weights.

        Raises:
            OutputError: A rank cannot write the folder; on all ranks.
        """
        with self.model.active():
            self._write(folder, record or {})

    def _write(self, folder: Path, record: Mapping[str, object]) -> None:
        model, is_first = self.model, dist.get_rank() == 0
        source = TrainingWeights.of(model)
        adapters = None if model.adapters is None else self._gathered(model.adapters)
        with ExitStack() as stack:
            building = _on_all_ranks(lambda: stack.enter_context(self._folder(folder)))
            route = self._route_to(ranks_that_see(building))
            own = {name: self._tables[name] for name in route.target.held_by[dist.get_rank()]}
            sink = LateErrors(
                ExportedModel(folder, new_files(building, own, self.dtype, self._names))
            )
            route.open(model.device_type, f"{self.name} {self.exports}").run(source, sink)
            _on_all_ranks(sink.check)

            def complete() -> None:
                if is_first:
                    with writing(folder):
                        self._complete(building, adapters, record)
                stack.close()

            _on_all_ranks(complete)
        self.exports += 1

    def _complete(
        self, building: Path, adapters: ExportedAdapters | None, record: Mapping[str, object]
    ) -> None:
        """Check the files of all ranks, and write those that only rank 0 has."""
        check_sizes(building, self._tables, self.dtype, self._names)
        write_index(building, self._tables, self.dtype, self._names)
        if record:
            write_json(building / EXPORT_FILE, record)
        if adapters is not None:
            adapters.write(building)

    @contextmanager
    def _folder(self, target: Path) -> Iterator[Path]:
        """Yield the unfinished folder; rank 0 creates it, and finally renames it."""
        if dist.get_rank() > 0:
            yield incomplete(target)
            return
        model = self.model
        with new_folder(
            model.folder,
            target,
            dtype=self.dtype,
            # With the head of the vocabulary, which a critic has lost.
            held=logical_shapes(model.description).keys(),
            scores=self.scores if model.head == "value" else None,
            tokenizer=self.tokenizer,
        ) as building:
            yield building

    def _gathered(self, adapters: Adapters) -> ExportedAdapters:
        """Gather the adapters on rank 0."""
        model, low_rank = self.model, adapters.low_rank
        ranks, dtype = dist.get_world_size(), self.dtype
        complete = full_adapters(model.description, low_rank, world_size=ranks, dtype=dtype)
        config = adapter_config(low_rank, model.folder, has_tower=model.description.reads_images)
        found = ExportedAdapters(complete.table(dist.get_rank()), dtype, config)
        way = self._routed(adapters.sharding, complete)
        name = f"{self.name} adapters {self.exports}"
        way.open(model.device_type, name).run(TrainingWeights(adapters.tensors()), found)
        return found

    @cached_property
    def _tables(self) -> Mapping[str, ShardingTable]:
        """Tensors of each file."""
        shapes = logical_shapes(self.model.description, head=self.model.head)
        table = {name: whole(name, shape) for name, shape in shapes.items()}
        return file_tables(table, self.dtype, self.shard_bytes, self._names)

    @cached_property
    def _names(self) -> StoredNames:
        """Names of the tensors in the files: those of the model's folder."""
        return names_of(self.model.folder)

    def _route_to(self, writers: Sequence[int]) -> WeightRoute:
        """Return the route of every tensor to the owner of its file, planned once."""
        owners = file_owners([*self._tables], writers, dist.get_world_size())
        if self.route is None or self.route.target.held_by != owners:
            target = Sharding(shards=self._tables, held_by=owners, dtype=self.dtype)
            self.route = self._routed(self.model.sharding, target)
        return self.route

    def _routed(self, source: Sharding, target: Sharding) -> WeightRoute:
        plan = plan_reshard(source, target, self.topology, bucket_bytes=self.bucket_bytes)
        seconds = self.timeout_seconds
        return WeightRoute(source=source, target=target, plan=plan, timeout_seconds=seconds)


def file_owners(
    files: Sequence[str], writers: Sequence[int], ranks: int
) -> tuple[tuple[str, ...], ...]:
    """Return the files of each rank: evenly spaced over the writers; the first owns a single file.

    Writers and files are in the order of the layers, so that a writer holds many of its weights.
    """
    owners = [writers[number * len(writers) // len(files)] for number in range(len(files))]
    return tuple(
        tuple(name for name, owner in zip(files, owners, strict=True) if owner == rank)
        for rank in range(ranks)
    )


def ranks_that_see(folder: Path) -> list[int]:
    """Return the ranks that see a folder of rank 0 on their nodes. A collective."""
    seen = [False] * dist.get_world_size()
    dist.all_gather_object(seen, folder.is_dir())
    return [rank for rank, sees in enumerate(seen) if sees]


class LateErrors:
    """Writes the tensors of an export; keeps an error until all tensors have arrived.

    A rank that stopped earlier would leave its peers waiting for messages.
    """

    def __init__(self, model: ExportedModel) -> None:
        self.model = model
        self.problem: OutputError | None = None

    def open(self, name: str) -> Tensor:
        """Return the host memory of a tensor."""
        return self.model.open(name)

    def close(self, name: str) -> None:
        """Write a complete tensor, unless an earlier one could not be written."""
        if self.problem is not None:
            self.model.filling.pop(name)
            return
        try:
            self.model.close(name)
        except OutputError as error:
            self.problem = error

    def check(self) -> None:
        """Check that all tensors have been written.

        Raises:
            OutputError: One could not be written.
        """
        if self.problem is not None:
            raise self.problem
        self.model.check_complete()


def _on_all_ranks(work: Callable[[], ResultT]) -> ResultT:
    """Return the result of work on each rank. A collective.

    Raises:
        OutputError: The work raised it on a rank; on all ranks.
    """
    result: list[ResultT] = []
    try:
        result.append(work())
        problem = ""
    except OutputError as error:
        problem = str(error)
    problems = [""] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    if found := next(filter(None, problems), ""):
        raise OutputError(found)
    return result[0]
