"""A Ray cluster for one run: joined at the user's address, or started on this machine."""

import atexit
import logging
import operator
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mindrl.cluster.prefork import PreforkServer
from mindrl.cluster.ray_calls import RayCalls
from mindrl.cluster.worker_process import WORKER_FOLDERS
from mindrl.errors import ClusterError, MindrlError, WorkerDiedError
from mindrl.platform.device import Platform
from mindrl.platform.environment import has_room_for_sockets, ray_address, ray_session_folder
from mindrl.platform.patches import (
    ray_forks_workers,
    ray_keeps_signals,
    ray_on_loopback,
    ray_without_services,
)
from mindrl.platform.scratch import Scratch, remove_unowned

logger = logging.getLogger(__name__)

_STOP_SECONDS = 30.0
"""Longest wait for Ray to end; it takes 6 s if its control process has ended."""
_START_ATTEMPTS = 3
"""Attempts to start Ray: its limit of 30 s cannot be changed, and a busy machine exceeds it."""
_NEVER_SECONDS = 10**6
"""Ray would end this process 60 s after its control process has ended; the run detects it
itself."""


@dataclass
class RayCluster:
    """Reserves the devices of each node of a run; ends only what it started."""

    platform: Platform
    devices: int
    devices_per_node: int
    timeout_seconds: float
    """Longest wait for the devices."""
    silence_seconds: float = 600
    """Longest silence of Ray's own processes."""
    own_shares: Sequence[int] = ()
    """Devices of each node; empty fills one node after the other."""
    rollout_devices: int = 0
    """Number of the devices that belong to a separate rollout."""
    is_spread: bool = False
    """Whether roles have their own training devices."""
    prefork: PreforkServer | None = None
    """Forks the workers of a cluster that is started here."""
    address: str | None = field(default_factory=ray_address)
    """None starts a cluster on this machine."""
    session: Scratch | None = None
    """Folder of a cluster that was started here."""
    placement: PlacementGroup | None = None
    """One bundle per node, with its share of the run."""
    started: list[psutil.Process] = field(default_factory=list)
    """Ray's processes that were started here."""

    def __post_init__(self) -> None:
        """Create the caller of Ray."""
        self.calls = RayCalls(self.silence_seconds)

    @property
    def shares(self) -> Sequence[int]:
        """Number of devices that the run uses on each node."""
        return self.own_shares or node_shares(self.devices, self.devices_per_node)

    @property
    def requested(self) -> str:
        """The devices in terms of the configuration."""
        apart = f" and rl_config.rollout_resource.num_npus={self.rollout_devices}"
        training = self.devices - self.rollout_devices
        said = f"rl_config.actor_resource.num_npus={training}"
        if self.is_spread:
            said = f"roles on {training} devices in total (rl_config.*_resource)"
        return said + (apart if self.rollout_devices else "")

    @property
    def started_here(self) -> bool:
        """Whether the cluster belongs to this run."""
        return self.address is None

    def start(self) -> None:
        """Start or join the cluster, and reserve the devices.

        Raises:
            ClusterError: The cluster cannot be reached or has too few devices, or the environment
                of this process has a refused setting.
        """
        self.platform.refuse_settings()
        self._check_local_devices()
        try:
            self._connect()
            self.placement = self._reserve("worker_start_timeout_seconds", self.timeout_seconds)
        except BaseException:
            self.stop()
            raise

    def reserve_again(self, wait_seconds: float) -> None:
        """Release the devices and reserve as many again; restart this run's own Ray if it is lost.

        Raises:
            ClusterError: The devices are not available in time, or a joined cluster is lost.
        """
        if (why := self.calls.lost(at_once=True)) is not None:
            if not self.started_here:
                raise ClusterError(
                    f"RAY_ADDRESS={self.address}: lost the cluster that this run has joined: {why}"
                )
            self.stop()
            self._connect()
        if self.placement is not None:
            self.calls(remove_placement_group, self.placement)
            self.placement = None
        self.placement = self._reserve("device_wait_seconds", wait_seconds)

    def present(self) -> list[int]:
        """Return the number of devices of each living node, the largest first."""
        return self.calls(_devices_of_nodes, self.platform.ray_resource)

    def stop(self) -> None:
        """Release the devices and end what this run started, in any state of Ray's processes."""
        is_sound = self.calls.lost(at_once=True) is None
        if self.placement is not None and is_sound and ray.is_initialized():
            with suppress(WorkerDiedError):
                self.calls.within(_STOP_SECONDS, remove_placement_group, self.placement)
        self.placement = None
        if self.started_here:
            self.started += self.calls.family()
            # Ray ends this process if the raylet ends while a call waits for it.
            self.calls.wake()
        self.calls.forget()
        try:
            self.calls.within(_STOP_SECONDS, ray.shutdown)
        except WorkerDiedError as error:
            logger.warning("Ray was not stopped: %s", error)
            # At exit it would wait again.
            atexit.unregister(ray.shutdown)
        self._end_started()

    def revive_prefork(self, notify: Callable[[str], None]) -> None:
        """Restart the prefork server if it was killed; without it each worker imports itself."""
        if self.prefork is not None and (how := self.prefork.revived()) is not None:
            notify(f"warning: the process from which workers are forked {how}; it was restarted")

    def _end_started(self) -> None:
        """End the remaining processes of Ray that this run has started."""
        for process in self.started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(self.started, timeout=_STOP_SECONDS)
        self.started.clear()
        if self.session is not None:
            self.session.close()
            self.session = None
        remove_unowned(Path(tempfile.gettempdir()), f"{WORKER_FOLDERS}*")

    def worker_options(self, node: int, *, deterministic: bool) -> dict[str, Any]:
        """Return Ray's options for a worker on a node of the run."""
        environment = self.platform.worker_environment(
            workers=max(self.shares),
            one_machine=self.started_here,
            deterministic=deterministic,
        )
        # Workers of the prefork server have this environment already.
        has_it = self.prefork is not None and environment == self.prefork.environment
        return {
            **self.platform.ray_options(1),
            "max_restarts": 0,
            "runtime_env": {} if has_it else {"env_vars": environment},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self.placement,
                placement_group_bundle_index=node,
            ),
        }

    def _connect(self) -> None:
        namespace = f"mindrl-{uuid4().hex[:8]}"
        ray_keeps_signals.install()
        if not self.started_here:
            try:
                joined = ray.init(address=self.address, namespace=namespace, log_to_driver=False)
                self.calls.watch(joined.address_info, is_ours=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ClusterError(f"RAY_ADDRESS={self.address}: cannot join: {error}") from error
            return
        for attempt in range(1, _START_ATTEMPTS + 1):
            # Own it before Ray writes to it: the next run removes the folder of a killed run.
            self.session = session = _session_folder()
            try:
                with nullcontext() if self.prefork is None else self.prefork.serving():
                    self._begin(namespace, str(session.folder))
            except MindrlError:
                # For example Ctrl-C.
                raise
            except Exception as error:
                # Ray raises a plain Exception if its processes start too late. Its logs stay.
                self.session = None
                self.started += _processes_in(session.folder)
                if attempt == _START_ATTEMPTS:
                    raise ClusterError(
                        f"Ray did not start on this machine in {_START_ATTEMPTS} attempts: "
                        f"{error!r}. Try again if the machine was busy; see the logs in "
                        f"{session.folder}"
                    ) from error
                logger.warning(
                    "Ray did not start: %r; trying again, logs in %s", error, session.folder
                )
                ray.shutdown()
                self._end_started()
            else:
                return

    def _begin(self, namespace: str, folder: str) -> None:
        """Start a cluster on this machine, with its sockets and logs in a folder."""
        ray_on_loopback.install()
        ray_without_services.install()
        if self.prefork is not None:
            ray_forks_workers.install()
        context = ray.init(
            # Without an address Ray may join another user's cluster of which it finds traces.
            address="local",
            **self.platform.ray_options(self.devices),
            object_store_memory=1 << 30,
            include_dashboard=False,
            namespace=namespace,
            log_to_driver=False,
            configure_logging=False,
            # Prestarted workers would have another environment.
            _system_config={
                "enable_worker_prestart": False,
                "prestart_worker_first_driver": False,
                "gcs_rpc_server_reconnect_timeout_s": _NEVER_SECONDS,
            },
            _node_ip_address=ray_on_loopback.LOOPBACK,
            _temp_dir=folder,
        )
        self.calls.watch(context.address_info, is_ours=True)
        self.started += self.calls.family()

    def _check_local_devices(self) -> None:
        if not self.started_here:
            return
        present = self.platform.local_devices()
        if present < self.devices:
            raise ClusterError(
                f"{self.requested}: this machine has {present} "
                f"{self.platform.ray_resource} device(s); use {present} or fewer, or set "
                "RAY_ADDRESS to join a larger cluster"
            )
        if self.devices > self.devices_per_node:
            raise ClusterError(
                f"rl_config.actor_resource.npus_per_node={self.devices_per_node}: all "
                f"{self.devices} devices of this run are on this machine; use {self.devices}, or "
                "set RAY_ADDRESS to join a larger cluster"
            )

    def _reserve(self, key: str, wait_seconds: float) -> PlacementGroup:
        resource = self.platform.ray_resource
        shares = self.shares
        deadline = time.monotonic() + wait_seconds
        while not fits(shares, present := self.present()):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{self.requested} with npus_per_node={self.devices_per_node}: needs "
                    f"{len(shares)} node(s) with {max(shares)} "
                    f"{resource} device(s) and as many CPUs each; the cluster has nodes with "
                    f"{present} after "
                    f"{wait_seconds:.0f} s (rl_config.{key})"
                )
            time.sleep(0.5)
        bundles = [{"CPU": float(share)} | {resource: float(share)} for share in shares]
        placement = self.calls(placement_group, bundles, strategy="STRICT_SPREAD")
        while not self.calls(placement.wait, timeout_seconds=1):
            if time.monotonic() < deadline:
                continue
            self.calls(remove_placement_group, placement)
            raise ClusterError(
                f"{self.requested}: other jobs use the {resource} devices of the cluster"
            )
        return placement


def node_shares(devices: int, per_node: int) -> list[int]:
    """Return the number of devices of a run on each of its nodes; only the last may have fewer."""
    return [min(per_node, devices - first) for first in range(0, devices, per_node)]


def fits(shares: Sequence[int], present: Sequence[int]) -> bool:
    """Return whether each share fits a separate node; `present` is sorted in descending order."""
    largest_first = sorted(shares, reverse=True)
    return len(shares) <= len(present) and all(map(operator.le, largest_first, present))


def _devices_of_nodes(resource: str) -> list[int]:
    return usable_devices(ray.nodes(), resource)


def usable_devices(nodes: Sequence[Mapping[str, Any]], resource: str) -> list[int]:
    """Return the number of devices of each living node that have a CPU too, the largest first.

    `nodes` are those of `ray.nodes`.
    """
    alive = (node["Resources"] for node in nodes if node["Alive"])
    found = (min(there.get(resource, 0), there.get("CPU", 0)) for there in alive)
    return sorted(map(int, found), reverse=True)


def _processes_in(folder: Path) -> list[psutil.Process]:
    """Return this process's descendants with the folder in their command lines."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(str(folder) in argument for argument in process.cmdline()):
                found.append(process)
    return found


def _session_folder() -> Scratch:
    """Create a folder for Ray's sockets and logs, where the paths of sockets are not too long."""
    folder = ray_session_folder()
    if has_room_for_sockets(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return Scratch.made("", folder)
    logger.warning("the path %s is too long for Ray's sockets: using /tmp", folder)
    return Scratch.made("mindrl-ray-", Path("/tmp"))  # noqa: S108 - readable by its owner alone
