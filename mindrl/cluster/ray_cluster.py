"""A Ray cluster for one run: joined where the user names one, else started on this machine."""

import logging
import shutil
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from mindrl.errors import ClusterError
from mindrl.platform.device import Platform
from mindrl.platform.environment import has_room_for_sockets, ray_address, ray_session_folder
from mindrl.platform.patches import ray_on_loopback

logger = logging.getLogger(__name__)


class RayCluster:
    """Holds one device per worker in a placement group; takes down only what it started."""

    def __init__(self, platform: Platform, *, devices: int, timeout_seconds: float) -> None:
        self.platform = platform
        self.devices = devices
        self.timeout_seconds = timeout_seconds
        self.address = ray_address()
        self.session: Path | None = None
        self.placement: PlacementGroup | None = None

    @property
    def started_here(self) -> bool:
        """Whether the cluster belongs to this run."""
        return self.address is None

    def __enter__(self) -> Self:
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
            self.placement = self._reserve()
        except BaseException:
            self._leave()
            raise
        finally:
            # Ray puts its own handler in place, which exits at once.
            signal.signal(signal.SIGTERM, on_sigterm)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the devices back and take down what this run started."""
        self._leave()

    def _connect(self) -> None:
        namespace = f"mindrl-{uuid4().hex[:8]}"
        if not self.started_here:
            try:
                ray.init(address=self.address, namespace=namespace, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ClusterError(f"RAY_ADDRESS={self.address}: cannot join: {error}") from error
            return
        ray_on_loopback.install()
        context = ray.init(
            **self.platform.ray_options(self.devices),
            object_store_memory=1 << 30,
            include_dashboard=False,
            namespace=namespace,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address=ray_on_loopback.LOOPBACK,
            _temp_dir=_session_folder(),
        )
        self.session = Path(context["session_dir"])

    def _check_local_devices(self) -> None:
        present = self.platform.local_devices()
        if self.started_here and present < self.devices:
            raise ClusterError(
                f"rl_config.actor_resource.num_npus={self.devices}: this machine has {present} "
                f"{self.platform.ray_resource} device(s); use {present} or fewer, or set "
                "RAY_ADDRESS to join a larger cluster"
            )

    def _reserve(self) -> PlacementGroup:
        resource = self.platform.ray_resource
        bundle = {"CPU": 1.0} | {resource: 1.0}
        deadline = time.monotonic() + self.timeout_seconds
        while (present := int(ray.cluster_resources().get(resource, 0))) < self.devices:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"rl_config.actor_resource.num_npus={self.devices}: the cluster has {present} "
                    f"{resource} device(s) after {self.timeout_seconds:.0f} s "
                    "(rl_config.worker_start_timeout_seconds)"
                )
            time.sleep(0.5)
        placement = placement_group([bundle] * self.devices, strategy="PACK")
        if not placement.wait(timeout_seconds=max(1.0, deadline - time.monotonic())):
            remove_placement_group(placement)
            raise ClusterError(
                f"rl_config.actor_resource.num_npus={self.devices}: {resource} devices are there, "
                "but other jobs hold them"
            )
        return placement

    def _leave(self) -> None:
        if self.placement is not None and ray.is_initialized():
            remove_placement_group(self.placement)
            self.placement = None
        ray.shutdown()
        if self.session is not None:
            shutil.rmtree(self.session, ignore_errors=True)


def _session_folder() -> str | None:
    """Return where Ray keeps its sockets and logs; Ray's own default where the path is too long."""
    folder = ray_session_folder()
    if not has_room_for_sockets(folder):
        logger.warning("%s is too long a path for sockets; Ray uses its own folder", folder)
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)
