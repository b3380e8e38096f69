"""What is read of the kernel's files, the proxies and the ports of this machine."""

import socket
from pathlib import Path

import pytest

from mindrl.platform.host_memory import container_memory
from mindrl.platform.probes.host import (
    connection_error,
    disk_facts,
    host_facts,
    loopback_proxies,
    network_facts,
    port_is_free,
    port_ranges,
    token_facts,
)


def test_the_tightest_control_group_above_the_process_counts(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("0::/job/step\n", encoding="utf-8")
    root = tmp_path / "fs"
    (root / "job" / "step").mkdir(parents=True)
    assert container_memory(groups, root) is None
    (root / "job" / "step" / "memory.max").write_text("max\n", encoding="utf-8")
    (root / "job" / "memory.max").write_text("68719476736\n", encoding="utf-8")
    assert container_memory(groups, root) == 64 << 30
    (root / "memory.max").write_text("34359738368\n", encoding="utf-8")
    assert container_memory(groups, root) == 32 << 30


def test_the_first_version_of_control_groups_writes_a_huge_number_for_no_limit(
    tmp_path: Path,
) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("5:cpu,cpuacct:/\n4:memory:/docker/1\n", encoding="utf-8")
    folder = tmp_path / "fs" / "memory" / "docker" / "1"
    folder.mkdir(parents=True)
    file = folder / "memory.limit_in_bytes"
    file.write_text("9223372036854771712\n", encoding="utf-8")
    assert container_memory(groups, tmp_path / "fs") is None
    file.write_text("1073741824\n", encoding="utf-8")
    assert container_memory(groups, tmp_path / "fs") == 1 << 30


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, ()),
        ({"http_proxy": "http://192.0.2.1:3128"}, ("http_proxy",)),
        ({"HTTPS_PROXY": "p", "http_proxy": "p"}, ("http_proxy", "HTTPS_PROXY")),
        ({"http_proxy": "p", "no_proxy": "example.org, 127.0.0.1"}, ()),
        ({"http_proxy": "p", "NO_PROXY": "*"}, ()),
        ({"http_proxy": "p", "no_proxy": "localhost"}, ("http_proxy",)),
    ],
)
def test_a_proxy_counts_where_no_proxy_does_not_except_the_loopback_address(
    environment: dict[str, str], names: tuple[str, ...]
) -> None:
    assert loopback_proxies(environment) == names


def test_ports_are_read_as_the_kernel_writes_them() -> None:
    assert list(port_ranges("8080,60000-60031")) == [range(8080, 8081), range(60000, 60032)]
    assert list(port_ranges("")) == []


def test_a_port_is_free_until_somebody_listens_and_then_it_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not port_is_free(port)
        assert connection_error("127.0.0.1", port) == ""
    assert port_is_free(port)
    assert connection_error("127.0.0.1", port) == "Connection refused"
    assert "label empty or too long" in connection_error("a..b", port)


def test_the_token_is_looked_for_where_ray_does(tmp_path: Path) -> None:
    file = tmp_path / "token"
    environment = {"RAY_AUTH_TOKEN_PATH": str(file)}
    assert token_facts(environment).source is None
    file.touch(mode=0o600)
    assert token_facts(environment).source is None
    file.write_text("secret", encoding="utf-8")
    assert token_facts(environment).source == str(file)
    assert not token_facts(environment).readable_by_others
    file.chmod(0o644)
    assert token_facts(environment).readable_by_others
    assert token_facts({"RAY_AUTH_TOKEN": "secret"}).source == "RAY_AUTH_TOKEN"


def test_a_folder_that_is_not_made_yet_is_judged_by_the_one_above_it(tmp_path: Path) -> None:
    found = disk_facts(tmp_path / "not" / "made")
    assert found.is_writable
    assert found.free == disk_facts(tmp_path).free > 0
    (tmp_path / "file").touch()
    assert not disk_facts(tmp_path / "file").is_writable


def test_this_machine_has_memory_limits_and_a_loopback_address() -> None:
    host, network = host_facts(), network_facts({})
    assert 0 < host.memory_available <= host.memory
    assert host.open_files <= host.open_files_hard or host.open_files_hard < 0
    assert network.loopback_works
    assert network.ephemeral_ports
