"""A Ray cluster for one run: joined where the user names one, else started on this machine."""

import logging
import operator
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mindrl.cluster.stem import Stem
from mindrl.errors import ClusterError, MindrlError
from mindrl.platform.device import Platform
from mindrl.platform.environment import has_room_for_sockets, ray_address, ray_session_folder
from mindrl.platform.patches import (
    ray_forks_workers,
    ray_on_loopback,
    ray_without_services,
)

logger = logging.getLogger(__name__)


@dataclass
class RayCluster:
    """Holds the devices of each node of a run; takes down only what it started."""

    platform: Platform
    devices: int
    devices_per_node: int
    timeout_seconds: float
    """Longest wait for the devices."""
    own_shares: Sequence[int] = ()
    """Devices of each node; none fills one node after the other."""
    rollout_devices: int = 0
    """Of the devices, those of a rollout apart."""
    is_spread: bool = False
    """Roles have training devices of their own."""
    stem: Stem | None = None
    """Forks the workers of a cluster that is started here."""
    address: str | None = field(default_factory=ray_address)
    """None starts a cluster on this machine."""
    session: Path | None = None
    """Folder of a cluster that was started here."""
    placement: PlacementGroup | None = None
    """A bundle is a node's share of the run, and no two lie on one node."""

    @property
    def shares(self) -> Sequence[int]:
        """Devices that the run takes of each node."""
        return self.own_shares or node_shares(self.devices, self.devices_per_node)

    @property
    def asked(self) -> str:
        """The devices as the configuration says them."""
        apart = f" and rl_config.rollout_resource.num_npus={self.rollout_devices}"
        training = self.devices - self.rollout_devices
        said = f"rl_config.actor_resource.num_npus={training}"
        if self.is_spread:
            said = f"roles on {training} devices in all (rl_config.*_resource)"
        return said + (apart if self.rollout_devices else "")

    @property
    def started_here(self) -> bool:
        """Whether the cluster belongs to this run."""
        return self.address is None

    def start(self) -> None:
        """Start or join, and reserve the devices.

        Raises:
            ClusterError: The cluster cannot be reached or has too few devices, or the environment
                of this process has a setting that no run starts with.
        """
        self.platform.refuse_settings()
        self._check_local_devices()
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            self._connect()
            self.placement = self._reserve("worker_start_timeout_seconds", self.timeout_seconds)
        except BaseException:
            self.stop()
            raise
        finally:
            # Ray puts its own handler in place, which exits at once.
            signal.signal(signal.SIGTERM, on_sigterm)

    def reserve_again(self, wait_seconds: float) -> None:
        """Give the devices back and take as many anew, waiting so long for those that are lost.

        Raises:
            ClusterError: They have not come back.
        """
        if self.placement is not None:
            remove_placement_group(self.placement)
            self.placement = None
        self.placement = self._reserve("device_wait_seconds", wait_seconds)

    def present(self) -> list[int]:
        """Return how many devices each living node has, the largest number first."""
        return _devices_of_nodes(self.platform.ray_resource)

    def stop(self) -> None:
        """Give the devices back and take down what this run started."""
        if self.placement is not None and ray.is_initialized():
            remove_placement_group(self.placement)
            self.placement = None
        ray.shutdown()
        if self.session is not None:
            shutil.rmtree(self.session, ignore_errors=True)

    def worker_options(self, node: int, *, deterministic: bool) -> dict[str, Any]:
        """Return Ray's options for a worker on a node of the run."""
        environment = self.platform.worker_environment(
            workers=max(self.shares),
            one_machine=self.started_here,
            deterministic=deterministic,
        )
        # Those of the stem have theirs already.
        has_it = self.stem is not None and environment == self.stem.environment
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
        if not self.started_here:
            try:
                ray.init(address=self.address, namespace=namespace, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ClusterError(f"RAY_ADDRESS={self.address}: cannot join: {error}") from error
            return
        folder = _session_folder()
        try:
            with nullcontext() if self.stem is None else self.stem.serving():
                self.session = self._begin(namespace, folder)
        except MindrlError:
            # Such as Ctrl-C.
            raise
        except Exception as error:
            # Ray raises the plain one where its processes are not there in time.
            raise ClusterError(
                f"Ray did not start on this machine: {error!r}; one that was too busy may do it at "
                f"another time. Its logs are in {folder or 'its own folder for sessions'}"
            ) from error

    def _begin(self, namespace: str, folder: str | None) -> Path:
        """Start a cluster on this machine; returns the folder of its session."""
        ray_on_loopback.install()
        ray_without_services.install()
        if self.stem is not None:
            ray_forks_workers.install()
        context = ray.init(
            # Without an address Ray may join another user's cluster that it finds a trace of.
            address="local",
            **self.platform.ray_options(self.devices),
            object_store_memory=1 << 30,
            include_dashboard=False,
            namespace=namespace,
            log_to_driver=False,
            configure_logging=False,
            # No worker before one is asked for: those would have another environment.
            _system_config={"enable_worker_prestart": False, "prestart_worker_first_driver": False},
            _node_ip_address=ray_on_loopback.LOOPBACK,
            _temp_dir=folder,
        )
        return Path(context["session_dir"])

    def _check_local_devices(self) -> None:
        if not self.started_here:
            return
        present = self.platform.local_devices()
        if present < self.devices:
            raise ClusterError(
                f"{self.asked}: this machine has {present} "
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
                    f"{self.asked} with npus_per_node={self.devices_per_node}: needs "
                    f"{len(shares)} node(s) with {max(shares)} "
                    f"{resource} device(s) each; the cluster has nodes with {present} after "
                    f"{wait_seconds:.0f} s (rl_config.{key})"
                )
            time.sleep(0.5)
        bundles = [{"CPU": float(share)} | {resource: float(share)} for share in shares]
        placement = placement_group(bundles, strategy="STRICT_SPREAD")
        if not placement.wait(timeout_seconds=max(1.0, deadline - time.monotonic())):
            remove_placement_group(placement)
            raise ClusterError(
                f"{self.asked}: {resource} devices are there, but other jobs hold them"
            )
        return placement


def node_shares(devices: int, per_node: int) -> list[int]:
    """Return the devices that a run takes of each of its nodes; only the last may give fewer."""
    return [min(per_node, devices - first) for first in range(0, devices, per_node)]


def fits(shares: Sequence[int], present: Sequence[int]) -> bool:
    """Say whether each share finds a node of its own; those present fall from the largest on."""
    largest_first = sorted(shares, reverse=True)
    return len(shares) <= len(present) and all(map(operator.le, largest_first, present))


def _devices_of_nodes(resource: str) -> list[int]:
    """Count the devices of each living node of the cluster, the largest first."""
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    return sorted((int(there.get(resource, 0)) for there in alive), reverse=True)


def _session_folder() -> str | None:
    """Return where Ray keeps its sockets and logs; Ray's own default where the path is too long."""
    folder = ray_session_folder()
    if not has_room_for_sockets(folder):
        logger.warning("%s is too long a path for sockets; Ray uses its own folder", folder)
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
