"""Checkpoints: the state of the trained models is written to files, and restored.

A checkpoint is written during the rollout: weights and optimizer are on the host then, and a thread
writes them from there. Until it is done the host's copies are locked: an overwrite waits. Regions
that may not leave the device are copied before the next update.
"""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.batch.route_keys import RoutePart
from mindrl.checkpoint.commits import SavedFiles, read_checkpoint, writing
from mindrl.checkpoint.route_files import PREFIX, read_routes, write_routes
from mindrl.checkpoint.state_files import NewSlice, StateReader, write_state
from mindrl.config.layout_keys import Role
from mindrl.errors import OutputError
from mindrl.models.placement import Box, volume
from mindrl.observability.progress import PROGRESS
from mindrl.training.engine import TrainingEngine
from mindrl.training.state_slice import ReadState, StateKind, StateSlice
from mindrl.workers.device_regions import StoredRegion


class StateSaver:
    """Writes this rank's share of each checkpoint."""

    def __init__(
        self, engines: Mapping[Role, TrainingEngine], regions: Mapping[Role, list[StoredRegion]]
    ) -> None:
        """Set the trained models, and the device regions of their state."""
        self.engines = engines
        self.regions = regions
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.folder: Path | None = None
        self.running: Future[SavedFiles] | None = None

    def nbytes(self) -> int:
        """Return the bytes that this rank writes, without names."""
        engines = self.engines.values()
        slices = (each for engine in engines for each in engine.state_slices())
        return sum(4 * volume(each.box) for each in slices if each.is_ours)

    def request(self, folder: Path) -> None:
        """Schedule a checkpoint of the current state, which `start` begins."""
        assert self.running is None, "the previous checkpoint is not finished"
        self.folder = folder

    def start(self) -> None:
        """Start the scheduled write: the movable state is on the host now."""
        if self.folder is None:
            return
        folder, self.folder = self.folder, None
        slices = {
            role: [
                NewSlice(each.kind, each.tensor, each.box, self._values(role, each))
                for each in engine.state_slices()
                if each.is_ours
            ]
            for role, engine in self.engines.items()
        }
        # The active world may change while files are written.
        place = dist.get_rank(), dist.get_world_size()
        updates = {str(role): engine.updates for role, engine in self.engines.items()}
        held = [region for regions in self.regions.values() for region in regions]
        for region in held:
            region.hold()
        kept = (each.routes.kept() for each in self.engines.values() if each.routes is not None)
        routes = {key: part for parts in kept for key, part in parts.items()}
        self.running = self.writer.submit(
            partial(_write, folder, slices, routes, updates, held, place)
        )

    def finish(self) -> SavedFiles:
        """Wait until the files are on the disk; a failed write is reported in the result."""
        self.start()
        assert self.running is not None, "no checkpoint was started"
        began = time.perf_counter()
        running, self.running = self.running, None
        try:
            with PROGRESS.waiting():
                saved = running.result()
        except OutputError as error:
            saved = SavedFiles(
                files=(), updates={}, seconds=0.0, waited_seconds=0.0, failure=str(error)
            )
        waited = time.perf_counter() - began
        waited += sum(region.flush_waited() for each in self.regions.values() for region in each)
        return replace(saved, waited_seconds=waited)

    def restore(self, role: Role, folder: Path, updates: int) -> None:
        """Load the state of a checkpoint into a model that is on the device.

        With `updates=0` the moments are zero, even if the checkpoint has some.

        Raises:
            CheckpointError: A file is damaged, or lacks something.
        """
        checkpoint, engine = read_checkpoint(folder), self.engines[role]
        with ExitStack() as stack:
            read = StateReader(checkpoint.paths(f"{role}-"), stack).read
            engine.restore(updates, read if updates else partial(_new, read))
        if engine.routes is not None:
            # Any rank can have the routes of any sequence, so each takes some of the files.
            files = checkpoint.paths(PREFIX)[dist.get_rank() :: dist.get_world_size()]
            engine.routes.keep(read_routes(files))

    def _values(self, role: Role, each: StateSlice) -> Tensor:
        for region in self.regions[role]:
            if region.holds(each.stored):
                if region.keeps and region.is_clean:
                    return each.values(region.host_copy(each.stored.detach()))
                break
        # Copy it: it is on the device, and the next update changes it.
        return each.values(each.stored.detach()).to("cpu", copy=True)


def _new(read: ReadState, kind: StateKind, tensor: str, box: Box) -> Tensor:
    """Read a weight; moments are zero before the first update."""
    if kind == "weight":
        return read(kind, tensor, box)
    return torch.zeros([stop - start for start, stop in box])


def _write(
    folder: Path,
    slices: Mapping[Role, list[NewSlice]],
    routes: Mapping[int, RoutePart],
    updates: Mapping[str, int],
    held: list[StoredRegion],
    place: tuple[int, int],
) -> SavedFiles:
    rank, ranks = place
    began = time.perf_counter()
    try:
        with writing(folder):
            files = tuple(
                write_state(folder / f"{role}-{rank:05}.safetensors", found)
                for role, found in slices.items()
            )
            if routes:
                files += (write_routes(folder, rank, routes),)
            seconds = time.perf_counter() - began
            saved = SavedFiles(files=files, updates=updates, seconds=seconds, waited_seconds=0.0)
            saved.report(folder, rank=rank, ranks=ranks)
            return saved
    finally:
        for region in held:
            region.let_go()
