"""Content of a Ray actor process: it builds a worker and then executes calls."""

import gc
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import ray
from ray.exceptions import ObjectLostError

from mindrl.batch.parcels import Parcel
from mindrl.cluster.node_watch import ProcessKey
from mindrl.cluster.profiled_calls import ProfiledCalls
from mindrl.config.run import RunConfig
from mindrl.observability.logs import configure_logging, redirect_output, stacks_on_signal
from mindrl.observability.progress import PROGRESS
from mindrl.observability.trace import TRACE, TracePart, span
from mindrl.platform.device import PLATFORMS, DeviceKind, prepare_process
from mindrl.platform.endings import start_ticks
from mindrl.platform.environment import take_on
from mindrl.platform.garbage import no_collection
from mindrl.platform.rendezvous import Seat, join_process_group, listen
from mindrl.platform.scratch import ENGINE_SOCKETS, Scratch

logger = logging.getLogger(__name__)

WORKER_FOLDERS = "mindrl-worker-"
"""Prefix of folders that contain the sockets of workers' engines."""


class WorkerPlan(Protocol):
    """Plan from which workers are built."""

    @property
    def config(self) -> RunConfig:
        """Configuration of the run."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Location of a worker process."""

    process: ProcessKey
    node: str
    """Its address."""
    node_id: str
    """Ray's id of the node."""
    device: str | None
    """Ray's name of the device; None without one, as on CPUs."""
    address: tuple[str, int] | None
    """Address of rank 0 for the other ranks; None on the others."""


class Reply(NamedTuple):
    """Answer of a worker to a call."""

    ticks: int
    """Progress ticks counted during the call."""
    result: Any
    """None if the result was not requested."""
    trace: TracePart | None
    """Trace of the call, if recorded."""


class WorkerProcess:
    """A process on one device. Large modules are not imported before `build`."""

    def __init__(self, device: DeviceKind, rank: int, world_size: int, log: Path) -> None:
        """Redirect all output of this process to its own log file."""
        redirect_output(log)
        configure_logging(log)
        stacks_on_signal()
        self.page = PROGRESS.share()
        self.scratch = Scratch.made(WORKER_FOLDERS)
        take_on({ENGINE_SOCKETS: str(self.scratch.folder)})
        self.platform = PLATFORMS[device]
        self.rank, self.world_size = rank, world_size
        self.log = log
        self.listener: socket.socket | None = None
        self.worker: Any = None

    def identify(self) -> Identity:
        """Return the location of this process; rank 0 opens the rendezvous port."""
        node, own = ray.util.get_node_ip_address(), os.getpid()
        address = None
        if self.rank == 0:
            self.listener = listen(node)
            address = self.listener.getsockname()[:2]
        return Identity(
            process=ProcessKey(own, start_ticks(own), self.page),
            node=node,
            node_id=ray.get_runtime_context().get_node_id(),
            device=self._device(),
            address=address,
        )

    def build(
        self, address: tuple[str, int], plan: WorkerPlan, factory: str
    ) -> Mapping[str, float]:
        """Join the other ranks at rank 0's address, and build the worker. A collective.

        Returns the seconds of each stage, by the names of `STAGES`.

        `factory` is the `module:function` that builds it. It is passed by name because its module
        imports the engines, which only a prepared process may do.
        """
        config, device = plan.config, self._device()
        per_node = config.rl_config.actor_resource.npus_per_node
        seat = Seat(
            rank=self.rank,
            world_size=self.world_size,
            local_device=self.platform.device_index(device) if device else self.rank % per_node,
        )
        timeout = timedelta(minutes=config.megatron_training.distributed_timeout_minutes)
        kind, name = self.platform.kind, self.log.stem
        folder = self.log.parents[1]
        self.profiles = ProfiledCalls(config.profiler_config, kind, self.rank, name, folder)
        module, function = factory.split(":")
        with self._failures_logged():
            backends = {config.training_backend(role) for role in config.roles}
            PROGRESS.enter("imports libraries")
            with no_collection():
                prepare_process(self.platform, megatron="megatron" in backends)
                import_module(module)
            gc.freeze()
            PROGRESS.enter("waits for the other workers")
            join_process_group(
                self.platform, seat, address, timeout=timeout, listener=self.listener
            )
            PROGRESS.enter("builds the models")
            self.worker = getattr(import_module(module), function)(plan, self.platform)
        PROGRESS.enter("")
        logger.info("worker %d is ready", self.rank)
        return PROGRESS.stages

    def call(
        self,
        method: str,
        arguments: tuple[Any, ...],
        *,
        answers: bool,
        step: int | None,
        traced: bool,
    ) -> Reply:
        """Call a method of the worker; record a trace if `traced` and a step is given.

        A parcel that it returns stays in Ray's object store, and its reference is the result;
        references among the arguments are opened here.
        """
        logger.info("%s begins", method)
        PROGRESS.begin()
        TRACE.begin(step if traced else None)
        with self._failures_logged(), span(method), self.profiles.of(method, step):
            result = getattr(self.worker, method)(*map(_opened, arguments))
            if isinstance(result, Parcel) and answers:
                result = ray.put(result)
        logger.info("%s ends", method)
        return Reply(PROGRESS.done(), result if answers else None, TRACE.end())

    @contextmanager
    def _failures_logged(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            logger.exception("failed")
            raise

    def _device(self) -> str | None:
        ids = ray.get_runtime_context().get_accelerator_ids().get(self.platform.ray_resource)
        return ids[0] if ids else None


def _opened(argument: Any) -> Any:
    """Return the object of a reference, None if its process has ended; other values unchanged."""
    if not isinstance(argument, ray.ObjectRef):
        return argument
    try:
        return ray.get(argument)
    except ObjectLostError:
        logger.warning("the process with %s has ended", argument)
        return None
