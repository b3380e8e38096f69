"""A Ray cluster for one run without unused processes.

Upstream: ray 2.60. Reason: `ray.init` starts an autoscaler, a server of the dashboard even without
a dashboard, and a reader of log files whose lines are not shown; each is an interpreter that
imports for a second while the workers start, and keeps running. No longer needed when `ray.init`
has options for them: tests/unit/platform checks for the methods.
"""

from typing import Any

from ray._private.node import Node


def install() -> None:
    """Disable these processes."""

    def no_server(node: Any, **_: object) -> None:
        node._webui_url = ""

    Node.start_monitor = Node.start_log_monitor = lambda _: None
    Node.start_api_server = no_server
