"""What Prometheus finds on the loopback address."""

import socket
import urllib.request

import pytest

from mindrl.errors import OutputError
from mindrl.tracking.prometheus import PrometheusEndpoint


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def scraped(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_a_scrape_has_the_newest_value_of_each_metric_by_its_name() -> None:
    endpoint = PrometheusEndpoint(free_port())
    endpoint.log(0, {"evaluation/accuracy": 0.25})
    for step in (1, 2):
        endpoint.log(step, {"reward/mean": step / 4, 'reward/own "x"\n.py:score': 1.0})
    assert scraped(endpoint.port) == [
        "mindrl_step 2.0",
        'mindrl_metric{name="evaluation/accuracy"} 0.25',
        'mindrl_metric{name="reward/mean"} 0.5',
        'mindrl_metric{name="reward/own \\"x\\"\\n.py:score"} 1.0',
    ]
    endpoint.close()
    with pytest.raises(OSError, match="refused"):
        scraped(endpoint.port)


def test_a_port_of_the_loopback_address_is_opened_and_no_other() -> None:
    endpoint = PrometheusEndpoint(free_port())
    endpoint.log(1, {"reward/mean": 1.0})
    with socket.create_server(("127.0.0.2", endpoint.port)):
        pass
    again = PrometheusEndpoint(endpoint.port)
    with pytest.raises(OutputError, match=f"prometheus_port={endpoint.port} cannot be opened"):
        again.log(1, {"reward/mean": 1.0})
    again.close()
    endpoint.close()
