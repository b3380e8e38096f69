"""Start a Ray that fails at its first attempt; print its servers after the start and the stop.

This is a program because Ray keeps the first token that a process has used.
"""

import logging
import os
from typing import Any

import psutil

from mindrl.platform.environment import prepare_driver

os.environ.pop("RAY_ADDRESS", None)
prepare_driver()

import ray  # noqa: E402 - it reads the token at import

from mindrl.cluster.ray_cluster import RayCluster  # noqa: E402
from mindrl.platform.device import PLATFORMS  # noqa: E402

PATIENCE = "RAY_gcs_server_port_wait_time_s"


def servers() -> int:
    children = psutil.Process().children(recursive=True)
    return sum(each.name() == "gcs_server" for each in children)


class SlowOnce(RayCluster):
    """Fails at the first attempt, because Ray may not wait for its server."""

    def _begin(self, *arguments: Any) -> None:
        try:
            super()._begin(*arguments)
        finally:
            os.environ.pop(PATIENCE, None)


def main() -> None:
    """Start and stop a cluster of one device."""
    logging.basicConfig(level=logging.WARNING)
    os.environ[PATIENCE] = "0"
    cluster = SlowOnce(
        PLATFORMS["cpu"], devices=1, devices_per_node=1, timeout_seconds=60, prefork=None
    )
    cluster.start()
    print("present", cluster.present(), "servers", servers())
    cluster.stop()
    print("initialized", ray.is_initialized(), "servers", servers())


if __name__ == "__main__":
    main()
