"""Wait until a Ray cluster has enough of a resource; the exit code is 1 on failure.

The cluster's address comes from RAY_ADDRESS, as for every other program that connects.
"""

import argparse
import os
import socket
import sys
import time

import ray

POLL_SECONDS = 1.0


def is_alive(process_id: int) -> bool:
    """Return whether the process that started Ray is running."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def is_listening(address: str) -> bool:
    """Return whether `host:port` accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=POLL_SECONDS).close()
    except OSError:
        return False
    return True


def offered(resource: str, address: str) -> float:
    """Count `resource` over all nodes; 0 while the head is still starting."""
    if not ray.is_initialized():
        if not is_listening(address):
            return 0.0
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except ConnectionError:
            # The head listens before its node has joined.
            return 0.0
    return float(ray.cluster_resources().get(resource, 0.0))


def main() -> int:
    """Poll until the count is reached, the time limit is over, or Ray has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resource", required=True)
    parser.add_argument("--count", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--ray-pid", type=int, required=True)
    arguments = parser.parse_args()
    address = os.environ["RAY_ADDRESS"]
    deadline = time.monotonic() + arguments.seconds
    shown = None
    while True:
        count = offered(arguments.resource, address)
        progress = f"{count:g} of {arguments.count:g} {arguments.resource}"
        if count != shown:
            print(f"[mindrl] {progress}", file=sys.stderr, flush=True)
            shown = count
        if count >= arguments.count:
            return 0
        if not is_alive(arguments.ray_pid):
            print("[mindrl] error: Ray ended while starting", file=sys.stderr)
            return 1
        if time.monotonic() >= deadline:
            print(f"[mindrl] error: {progress} after {arguments.seconds:g} s", file=sys.stderr)
            return 1
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
