"""Addresses of servers: a scheme, a host, a port, and the prefix of a gateway."""

import pytest

from mindrl.config.server_address import nearest_address, unfit_server


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:8000",
        "http://127.0.0.1:8000/teacher",
        "http://localhost:8000/",
        "https://[::1]",
        "HTTP://Localhost:8000",
    ],
)
def test_a_scheme_a_host_a_port_and_a_prefix_are_an_address(address: str) -> None:
    assert unfit_server(address, allow_remote=False) == ""


@pytest.mark.parametrize("rest", ["/v1", "/v1/", "?key=1", "#a", "/?", "?"])
def test_what_follows_the_port_is_refused_with_the_address_before_it(rest: str) -> None:
    why = unfit_server(f"http://Host:8000{rest}", allow_remote=True)
    assert why.endswith("use http://Host:8000")
    assert nearest_address(f"http://Host:8000{rest}") == "http://Host:8000"


def test_a_user_is_refused() -> None:
    why = unfit_server("http://me:secret@[::1]:8000", allow_remote=False)
    assert why.endswith("use http://[::1]:8000")


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "\u00e9", ""])
def test_a_host_that_no_name_server_can_look_up_is_refused(host: str) -> None:
    why = unfit_server(f"http://{host}:8000", allow_remote=True)
    assert why == "must be a URL such as http://127.0.0.1:8000"
