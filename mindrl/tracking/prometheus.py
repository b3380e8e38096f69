"""The newest metrics on a port of the loopback address, in Prometheus format."""

import os
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily

from mindrl.errors import OutputError
from mindrl.observability.metrics import Metrics

HOST = "127.0.0.1"


class PrometheusEndpoint:
    """Serves from a thread, starting with the first metrics: one gauge, labelled by metric."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.step, self.newest = 0, Metrics()
        """Newest value of each metric: not every step has an evaluation."""
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self.close = lambda: None

    def log(self, step: int, metrics: Metrics) -> None:
        """Make these metrics available for the next request.

        Raises:
            OutputError: The port is taken.
        """
        first = not self.newest
        # A new dictionary, since the thread may read the old one.
        self.step, self.newest = step, self.newest | metrics
        if first:
            self._open()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current metrics."""
        yield GaugeMetricFamily("mindrl_step", "The newest step.", value=self.step)
        gauge = GaugeMetricFamily(
            "mindrl_metric", "A metric of docs/reference/metrics.md, newest value.", labels=["name"]
        )
        for name, value in self.newest.items():
            gauge.add_metric([name], value)
        yield gauge

    def _open(self) -> None:
        try:
            server, _ = start_http_server(self.port, HOST, self.registry)
        except OSError as error:
            key = f"rl_config.tracking.prometheus_port={self.port}"
            raise OutputError(f"{key} cannot be opened: {os.strerror(error.errno or 0)}") from error

        def close() -> None:
            server.shutdown()
            server.server_close()

        self.close = close
