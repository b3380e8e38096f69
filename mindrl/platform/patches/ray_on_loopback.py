"""A Ray cluster of one machine that listens on the loopback address only.

Upstream: ray 2.60. Reason: `ray.init(_node_ip_address="127.0.0.1")` replaces the address by the
machine's own, and then every Ray service listens on all interfaces. With the loopback address kept,
all of them bind to it. No longer needed when `resolve_ip_for_localhost` keeps 127.0.0.1, or
`ray.init` has an option for it: tests/unit/platform checks for it.
"""

from ray._private import services

LOOPBACK = "127.0.0.1"


def install() -> None:
    """Return loopback addresses unchanged."""
    services.resolve_ip_for_localhost = lambda host: host
