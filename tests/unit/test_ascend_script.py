"""The Ascend entry script, on a machine without NPUs.

The script is the real one. What an Ascend node has and this machine lacks is put in its way: device
files, npu-smi, CANN, and packages that may be found but not imported. In most tests `ray` and
`python` are recorders, so that what the script starts, passes on and ends can be read; the last
test runs the real Ray.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = "scripts/train_grpo_qwen25_7b.sh"

FAKES = Path(__file__).parent / "ascend_fakes"


@dataclass(kw_only=True)
class Node:
    """A machine that looks like an Ascend node to the script."""

    folder: Path
    environment: dict[str, str]
    checkout: Path = ROOT
    pids: list[int] = field(default_factory=list)

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", SCRIPT, *arguments],
            cwd=self.checkout,
            env=self.environment | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **settings)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def calls(self, program: str) -> list[dict]:
        file = self.folder / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        found = [call for call in map(json.loads, lines) if call["program"] == program]
        self.pids += [pid for call in found for pid in call.get("pids", [])]
        return found

    def option(self, call: dict, name: str) -> str:
        return call["arguments"][call["arguments"].index(name) + 1]

    def wait_for_call(self, program: str, number: int = 1) -> dict:
        deadline = time.monotonic() + 60
        while len(calls := self.calls(program)) < number:
            assert time.monotonic() < deadline, f"{program} was not called {number} time(s)"
            time.sleep(0.05)
        return calls[number - 1]


def write_program(path: Path, command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Make a node with 4 NPUs, CANN and all packages, whose `ray` and `python` are recorders."""
    for name in ("bin", "dev", "home", "packages", "Ascend/ascend-toolkit"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("davinci0", "davinci1", "davinci2", "davinci3", "davinci_manager"):
        (tmp_path / "dev" / name).touch()
    toolkit = tmp_path / "Ascend" / "ascend-toolkit"
    # Like the real one: chatty, with failing commands and unset variables.
    lines = [f"export ASCEND_HOME_PATH={toolkit}", "echo loading", "false", "echo $NEVER_SET"]
    (toolkit / "set_env.sh").write_text("\n".join(lines))
    for name in ("torch_npu", "vllm_ascend", "mindspeed", "ray", "megatron/core"):
        package = tmp_path / "packages" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('imported on the wrong machine')")
    for name in ("ray", "python"):
        write_program(tmp_path / "bin" / name, f"{sys.executable} {FAKES / name}.py")
    write_program(tmp_path / "bin" / "npu-smi", "true")
    environment = {
        "PATH": f"{tmp_path / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(tmp_path / "packages"),
        "DEVICE_DIR": str(tmp_path / "dev"),
        "ASCEND_INSTALL_DIR": str(tmp_path / "Ascend"),
        "CALLS": str(tmp_path / "calls.jsonl"),
    }
    made = Node(folder=tmp_path, environment=environment)
    yield made
    # After a failure the script keeps Ray's logs; a failed test may leave processes too.
    for call in made.calls("ray"):
        if "--temp-dir" in call["arguments"]:
            shutil.rmtree(made.option(call, "--temp-dir"), ignore_errors=True)
    for pid in filter(is_running, made.pids):
        os.kill(pid, signal.SIGKILL)


def test_a_machine_without_npus_gets_every_finding_at_once_and_exit_code_3(node: Node) -> None:
    shutil.rmtree(node.folder / "packages")
    shutil.rmtree(node.folder / "Ascend")
    shutil.rmtree(node.folder / "dev")
    (node.folder / "bin" / "npu-smi").unlink()

    result = node.run("rl_config.seed=1", PYTHON_IS_BARE="1")

    assert result.returncode == 3
    findings = [line for line in result.stderr.splitlines() if line.startswith("    - ")]
    expected = [
        "NPU devices",
        "npu-smi",
        "CANN",
        "torch_npu",
        "vllm_ascend",
        "mindspeed",
        "megatron.core",
        "ray",
    ]
    assert "8 finding(s)" in result.stderr
    assert [word for word, line in zip(expected, findings, strict=True) if word in line] == expected
    assert result.stderr.count("      -> ") == 8  # each says how to get it
    assert node.calls("ray") == []


def test_check_on_a_complete_node_counts_4_npus_and_starts_nothing(node: Node) -> None:
    result = node.run("--check")

    assert result.returncode == 0, result.stderr
    assert "ready, 4 NPU(s) on node 0 of 1" in result.stderr
    assert node.calls("ray") == []
    assert node.calls("python") == []


def test_visible_devices_limit_the_count_to_2(node: Node) -> None:
    result = node.run("--check", ASCEND_RT_VISIBLE_DEVICES="1,3")

    assert "ready, 2 NPU(s)" in result.stderr


def test_check_names_the_one_package_that_is_missing(node: Node) -> None:
    shutil.rmtree(node.folder / "packages" / "vllm_ascend")

    result = node.run("--check")

    assert result.returncode == 3
    assert "1 finding(s)" in result.stderr
    assert "Python package: vllm_ascend" in result.stderr


def test_help_documents_every_setting_and_exits_0(node: Node) -> None:
    result = node.run("--help")

    assert result.returncode == 0
    settings = ["NNODES", "NODE_RANK", "MASTER_ADDR", "RAY_PORT", "SOCKET_IFNAME", "WAIT_SECONDS"]
    options = [
        "--check",
        "--dry-run",
        "--help",
        "RAY_AUTH_TOKEN_PATH",
        "NPUS_PER_NODE",
        "STOP_SECONDS",
    ]
    assert [word for word in settings + options if word not in result.stdout] == []


def test_dry_run_goes_to_the_program_without_preflight_or_ray(node: Node) -> None:
    shutil.rmtree(node.folder / "dev")

    result = node.run("--dry-run", "rl_config.seed=1")

    assert result.returncode == 0, result.stderr
    config = ["--config-name", "grpo_qwen25_7b"]
    (call,) = node.calls("python")
    assert call["arguments"] == ["cli/train_grpo.py", *config, "--dry-run", "rl_config.seed=1"]
    assert node.calls("ray") == []


def test_dry_run_accepts_the_configuration_that_is_shipped(node: Node) -> None:
    folder = f"hydra.run.dir={node.folder / 'run'}"
    result = node.run("--dry-run", folder, PYTHON=sys.executable, PYTHONPATH="")

    assert result.returncode == 0, result.stderr
    assert "the configuration is valid" in result.stdout


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"NNODES": "two"}, "NNODES=two must be a whole number of at least 1"),
        ({"NNODES": "2", "NODE_RANK": "2"}, "NODE_RANK=2 must be below NNODES=2"),
        ({"WAIT_SECONDS": "0"}, "WAIT_SECONDS=0 must be a whole number of at least 1"),
        ({"RAY_PORT": "80"}, "RAY_PORT=80 must be a whole number of at least 1024"),
    ],
)
def test_a_wrong_setting_is_named_and_exits_2(
    node: Node, settings: dict[str, str], message: str
) -> None:
    result = node.run(**settings)

    assert result.returncode == 2
    assert message in result.stderr


def test_an_unknown_option_exits_2(node: Node) -> None:
    result = node.run("--dryrun")

    assert result.returncode == 2
    assert "unknown option --dryrun" in result.stderr


def test_several_nodes_need_an_address_and_a_shared_token(node: Node) -> None:
    result = node.run(NNODES="2")

    assert result.returncode == 3
    assert "2 finding(s)" in result.stderr
    assert "MASTER_ADDR: not set" in result.stderr
    assert "Ray token: none for 2 nodes" in result.stderr


def test_a_head_address_that_is_loopback_is_refused(node: Node) -> None:
    result = node.run(NNODES="2", MASTER_ADDR="localhost", RAY_AUTH_TOKEN="0" * 32)

    assert result.returncode == 3
    assert "MASTER_ADDR=localhost: is 127.0.0.1 here" in result.stderr


def test_one_node_starts_a_head_waits_for_4_npus_trains_and_stops_ray(node: Node) -> None:
    result = node.run("rl_config.seed=1", "train_iters=2")

    assert result.returncode == 0, result.stderr
    (ray,) = node.calls("ray")
    arguments = ray["arguments"]
    assert arguments[:3] == ["start", "--head", "--port"]
    assert {"--block", "--include-dashboard=false"} <= set(arguments)
    assert json.loads(node.option(ray, "--resources")) == {"NPU": 4}
    assert ray["environment"]["RAY_AUTH_MODE"] == "token"
    assert ray["token_mode"] == "0o600"
    wait, train = node.calls("python")
    resource = ["--resource", "NPU", "--count", "4", "--seconds", "600"]
    ray_pid = ["--ray-pid", str(ray["pids"][0])]
    assert wait["arguments"] == ["scripts/lib/wait_for_devices.py", *resource, *ray_pid]
    config = ["--config-name", "grpo_qwen25_7b"]
    overrides = ["rl_config.seed=1", "train_iters=2"]
    assert train["arguments"] == ["cli/train_grpo.py", *config, *overrides]
    assert train["address"] == f"127.0.0.1:{arguments[3]}"
    assert len(node.calls("ray stopped")) == 1
    assert [pid for pid in node.pids if is_running(pid)] == []
    assert not Path(node.option(ray, "--temp-dir")).exists()


def test_the_exit_code_of_the_program_is_the_scripts_own(node: Node) -> None:
    result = node.run(TRAINING_CODE="5")

    assert result.returncode == 5
    assert len(node.calls("ray stopped")) == 1
    assert "Ray's logs are in /tmp/mindrl-ray." in result.stderr


def test_npus_that_do_not_come_end_the_run_with_exit_code_4(node: Node) -> None:
    result = node.run(WAIT_CODE="1", WAIT_SECONDS="7")

    assert result.returncode == 4
    (wait,) = node.calls("python")  # the program was not started
    assert wait["arguments"][6] == "7"
    node.calls("ray")
    assert [pid for pid in node.pids if is_running(pid)] == []


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
    try:
        process = node.start(NNODES="2", NODE_RANK="1", RAY_LIVES="2", **settings)
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


@pytest.mark.e2e
@pytest.mark.slow
def test_with_the_real_ray_the_program_sees_4_npus_and_nothing_is_left(node: Node) -> None:
    shutil.copytree(ROOT / "scripts", node.folder / "checkout" / "scripts")
    (node.folder / "checkout" / "cli").mkdir()
    (node.folder / "checkout" / "cli" / "train_grpo.py").write_text(TRAINING)
    for name in ("bin/ray", "bin/python"):
        (node.folder / name).unlink()
    shutil.rmtree(node.folder / "packages" / "ray")
    tools = Path(sys.executable).parent
    node.environment["PATH"] = f"{tools}:{node.environment['PATH']}"
    node.checkout = node.folder / "checkout"

    result = node.run("rl_config.seed=1")

    assert result.returncode == 0, result.stderr
    assert "NPU 4.0" in result.stdout
    assert "overrides ['rl_config.seed=1']" in result.stdout
    assert "4 of 4 NPU" in result.stderr
    here = str(node.checkout)
    running = psutil.process_iter(["cwd", "status", "name"])
    assert [process.info for process in running if process.info["cwd"] == here] == []
