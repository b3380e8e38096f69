"""Check that this machine has what the trackers of a run need."""

import os
import socket
from collections.abc import Iterator
from importlib.util import find_spec

from mindrl.config.finding import Finding, broken
from mindrl.config.own_functions import named_function
from mindrl.config.run import RunConfig
from mindrl.config.tracking import TRACKERS
from mindrl.errors import ConfigError
from mindrl.tracking.child import FIELD
from mindrl.tracking.opened import port_of
from mindrl.tracking.prometheus import HOST


def tracker_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield trackers without package or import, and a Prometheus port that is taken."""
    for name in config.rl_config.tracking.trackers:
        if name in TRACKERS and find_spec(name) is None:
            need = f": the package {name} is not installed: pip install 'mindrl[{name}]'"
            yield broken(FIELD, name, need)
        elif ":" in name:
            try:
                named_function(FIELD, name, {}, "tracker")
            except ConfigError as error:
                yield Finding(str(error), FIELD, name)
    port = port_of(config)
    if port is not None:
        try:
            socket.create_server((HOST, port)).close()
        except OSError as error:
            need = f"must be a free port on {HOST}: {os.strerror(error.errno or 0)}"
            yield broken("rl_config.tracking.prometheus_port", port, need, None)
