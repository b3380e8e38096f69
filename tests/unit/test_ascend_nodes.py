"""The Ray nodes that the Ascend entry scripts start, join and end, on a machine without NPUs.

The scripts are the real ones; what stands for an Ascend node is in ascend_node. The last test but
one runs the real Ray.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ascend_node import ROOT, Node, ready_node
from program import is_running


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from ready_node(tmp_path)


def test_one_node_starts_a_head_waits_for_8_npus_trains_and_stops_ray(node: Node) -> None:
    overrides = ["megatron_training.seed=1", "megatron_training.train_iters=2"]
    result = node.run(*overrides)

    assert result.returncode == 0, result.stderr
    (ray,) = node.calls("ray")
    arguments = ray["arguments"]
    assert arguments[:3] == ["start", "--head", "--port"]
    assert {"--block", "--include-dashboard=false"} <= set(arguments)
    assert json.loads(node.option(ray, "--resources")) == {"NPU": 8}
    assert ray["environment"]["RAY_AUTH_MODE"] == "token"
    assert ray["token_mode"] == "0o600"
    wait, train = node.calls("python")
    resource = ["--resource", "NPU", "--count", "8", "--seconds", "600"]
    ray_pid = ["--ray-pid", str(ray["pids"][0])]
    assert wait["arguments"] == ["scripts/lib/wait_for_devices.py", *resource, *ray_pid]
    config = ["--config-name", "grpo_qwen25_7b"]
    assert train["arguments"] == ["cli/train_grpo.py", *config, *overrides]
    assert train["address"] == f"127.0.0.1:{arguments[3]}"
    assert len(node.calls("ray stopped")) == 1
    assert [pid for pid in node.pids if is_running(pid)] == []
    assert not Path(node.option(ray, "--temp-dir")).exists()


@pytest.mark.nightly
def test_the_exit_code_of_the_program_is_the_scripts_own(node: Node) -> None:
    result = node.run(TRAINING_CODE="5")

    assert result.returncode == 5
    assert len(node.calls("ray stopped")) == 1
    assert "see Ray's logs in /tmp/mindrl-ray." in result.stderr


@pytest.mark.nightly
def test_npus_that_do_not_come_end_the_run_with_exit_code_4(node: Node) -> None:
    result = node.run(WAIT_CODE="1", WAIT_SECONDS="7")

    assert result.returncode == 4
    (wait,) = node.calls("python")  # the program was not started
    assert wait["arguments"][6] == "7"
    node.calls("ray")
    assert [pid for pid in node.pids if is_running(pid)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("stage", ["wait", "training"])
def test_sigterm_stops_what_runs_and_leaves_no_process(node: Node, stage: str) -> None:
    process = node.start(**{f"{stage.upper()}_TAKES": "600"})
    node.wait_for_call("python", number=1 if stage == "wait" else 2)
    ray = node.wait_for_call("ray")
    assert all(map(is_running, ray["pids"]))

    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)

    assert process.returncode == (143 if stage == "wait" else 130), err
    (stopped,) = node.calls("stopped")
    program = "scripts/lib/wait_for_devices.py" if stage == "wait" else "cli/train_grpo.py"
    assert stopped["name"] == program
    assert len(node.calls("ray stopped")) == 1
    assert [pid for pid in node.pids if is_running(pid)] == []


@pytest.mark.nightly
def test_a_ray_process_that_the_script_did_not_start_survives_it(node: Node) -> None:
    other = subprocess.Popen(
        [node.folder / "bin" / "ray", "start", "--head"],
        env=node.environment | {"CALLS": str(node.folder / "other.jsonl")},
        start_new_session=True,
    )
    try:
        assert node.run().returncode == 0
        assert other.poll() is None
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()


def own_address() -> tuple[str, str]:
    """Find an address of this machine that is not loopback, and its interface."""
    for interface, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family.name == "AF_INET" and not address.address.startswith("127."):
                return interface, address.address
    pytest.skip("this machine has no address but loopback")


@pytest.mark.nightly
def test_node_1_joins_the_head_and_ends_with_it(node: Node) -> None:
    interface, address = own_address()
    if shutil.which("ip", path=node.environment["PATH"]) is None:
        pytest.skip("iproute2 is not installed")
    listener = (
        "import socket,time; s=socket.create_server(('', 0)); print(s.getsockname()[1], flush=True)"
    )
    head = subprocess.Popen(
        [sys.executable, "-c", f"{listener}; time.sleep(600)"], stdout=subprocess.PIPE, text=True
    )
    assert head.stdout is not None
    port = head.stdout.readline().strip()
    settings = {"MASTER_ADDR": address, "RAY_PORT": port, "RAY_AUTH_TOKEN": "0" * 32}
    size = "rl_config.actor_resource.num_npus=16"
    try:
        process = node.start(size, NNODES="2", NODE_RANK="1", RAY_LIVES="1", **settings)
        ray = node.wait_for_call("ray")
    finally:
        head.kill()
        head.wait()
    _, err = process.communicate(timeout=60)

    assert process.returncode == 0, err
    assert "the head has ended" in err
    arguments = ray["arguments"]
    assert arguments[:3] == ["start", "--address", f"{address}:{port}"]
    assert node.option(ray, "--node-ip-address") == address
    assert ray["environment"]["HCCL_SOCKET_IFNAME"] == interface
    assert node.calls("python") == []  # the program runs on node 0 only
    assert [pid for pid in node.pids if is_running(pid)] == []


TRAINING = """
import sys
import ray
ray.init(log_to_driver=False, logging_level="ERROR")
print("NPU", ray.cluster_resources()["NPU"])
print("overrides", sys.argv[3:])
"""


@pytest.mark.nightly
@pytest.mark.e2e
@pytest.mark.slow
def test_with_the_real_ray_the_program_sees_8_npus_and_nothing_is_left(node: Node) -> None:
    shutil.copytree(ROOT / "scripts", node.folder / "checkout" / "scripts")
    (node.folder / "checkout" / "cli").mkdir()
    (node.folder / "checkout" / "cli" / "train_grpo.py").write_text(TRAINING)
    for name in ("bin/ray", "bin/python"):
        (node.folder / name).unlink()
    shutil.rmtree(node.folder / "packages" / "ray")
    tools = Path(sys.executable).parent
    node.environment["PATH"] = f"{tools}:{node.environment['PATH']}"
    node.checkout = node.folder / "checkout"
    for name in ("configs", "mindrl"):
        (node.checkout / name).symlink_to(ROOT / name)

    result = node.run("megatron_training.seed=1")

    assert result.returncode == 0, result.stderr
    assert "NPU 8.0" in result.stdout
    assert "overrides ['megatron_training.seed=1']" in result.stdout
    assert "8 of 8 NPU" in result.stderr
    here = str(node.checkout)
    running = psutil.process_iter(["cwd", "status", "name"])
    assert [process.info for process in running if process.info["cwd"] == here] == []


@pytest.mark.nightly
def test_nodes_with_the_same_secret_look_for_the_head_at_the_same_port(node: Node) -> None:
    _, address = own_address()
    (file := node.folder / "token").write_text("1" * 32 + "\n")
    secrets = [
        {"RAY_AUTH_TOKEN": "1" * 32},
        {"RAY_AUTH_TOKEN_PATH": str(file)},
        {"RAY_AUTH_TOKEN": "2" * 32},
    ]
    size = "rl_config.actor_resource.num_npus=16"
    place = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": address, "WAIT_SECONDS": "1"}
    started = [node.start(size, **place, **secret) for secret in secrets]
    said = [process.communicate(timeout=60)[1] for process in started]

    assert [process.returncode for process in started] == [4, 4, 4], said
    found = [re.search(rf"no head at {re.escape(address)}:(\d+)", text) for text in said]
    ports = [int(match[1]) for match in found if match]
    assert ports[0] == ports[1] != ports[2]
    assert [port for port in ports if not 20000 <= port < 30000] == []
