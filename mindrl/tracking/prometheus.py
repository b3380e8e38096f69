"""The newest metrics on a port of the loopback address, as Prometheus asks for them."""

import os
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily

from mindrl.errors import OutputError
from mindrl.observability.metrics import Metrics

HOST = "127.0.0.1"


class PrometheusEndpoint:
    """Answers in a thread, from the first metrics on: one gauge, the metrics by their names."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.step, self.newest = 0, Metrics()
        """Of each metric the newest value: an evaluation is not of every step."""
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self.close = lambda: None

    def log(self, step: int, metrics: Metrics) -> None:
        """Have these metrics there for whoever asks next.

        Raises:
            OutputError: The port is taken.
        """
        first = not self.newest
        # The thread reads one dictionary while the next one is made.
        self.step, self.newest = step, self.newest | metrics
        if first:
            self._open()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield what there is."""
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
