"""What the Ascend entry scripts find out before they start anything, on a machine without NPUs.

The scripts are the real ones; what stands for an Ascend node is in ascend_node.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ascend_node import ANY_RUN, Node, ready_node

BOTH = "rl_config.actor_resource.num_npus + rl_config.rollout_resource.num_npus"


def rollout_on(devices: int) -> tuple[str, ...]:
    """Return the overrides of a rollout on its own devices."""
    own = f"rl_config.rollout_resource.num_npus={devices}"
    return ("rl_config.use_integrated_worker=false", own)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from ready_node(tmp_path)


def test_a_machine_without_npus_gets_every_finding_at_once_and_exit_code_3(node: Node) -> None:
    shutil.rmtree(node.folder / "packages")
    shutil.rmtree(node.folder / "Ascend")
    shutil.rmtree(node.folder / "dev")
    (node.folder / "bin" / "npu-smi").unlink()

    result = node.run("megatron_training.seed=1", PYTHON="python", PYTHON_IS_BARE="1")

    assert result.returncode == 3
    findings = [line for line in result.stderr.splitlines() if line.startswith("    - ")]
    expected = [
        "NPU devices",
        "npu-smi",
        "CANN",
        "torch_npu",
        "vllm_ascend",
        "triton, which MindSpeed imports",
        "torchvision, which MindSpeed imports",
        "mindspeed",
        "megatron.core",
        "ray",
        "hydra",
    ]
    assert "11 finding(s)" in result.stderr
    assert [word for word, line in zip(expected, findings, strict=True) if word in line] == expected
    assert result.stderr.count("      -> ") == 11  # each says how to get it
    assert "pip install torch-npu==2.10.0.post4\n" in result.stderr  # as pyproject.toml pins it
    assert node.calls("ray") == []


def test_check_on_a_complete_node_counts_8_npus_and_starts_nothing(node: Node) -> None:
    result = node.run("--check")

    assert result.returncode == 0, result.stderr
    assert "ready, 8 NPU(s) on node 0 of 1" in result.stderr
    assert node.calls("ray") == []
    assert node.calls("python") == []


@pytest.mark.nightly
def test_visible_devices_limit_the_count_to_2(node: Node) -> None:
    result = node.run("--check", ASCEND_RT_VISIBLE_DEVICES="1,3")

    assert "ready, 2 NPU(s)" in result.stderr
    assert result.returncode == 2
    assert "the run needs 8 NPU(s)" in result.stderr


def test_a_blank_in_the_list_of_devices_is_a_finding_with_the_list_without_it(node: Node) -> None:
    result = node.run("--check", ASCEND_RT_VISIBLE_DEVICES="1, 3")

    assert result.returncode == 3
    assert "- ASCEND_RT_VISIBLE_DEVICES=1, 3: CANN ends the list at a blank" in result.stderr
    assert "-> write ASCEND_RT_VISIBLE_DEVICES=1,3\n" in result.stderr


def test_more_npus_than_the_node_has_are_a_finding(node: Node) -> None:
    result = node.run("--check", NPUS_PER_NODE="16")

    assert result.returncode == 3
    assert "NPUS_PER_NODE=16, and" in result.stderr
    assert "set it to at most 8" in result.stderr


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

    result = node.run("--dry-run", "megatron_training.seed=1")

    assert result.returncode == 0, result.stderr
    config = ["--config-name", "grpo_qwen25_7b"]
    (call,) = node.calls("python")
    override = "megatron_training.seed=1"
    assert call["arguments"] == ["cli/train_grpo.py", *config, override, "--dry-run", "--elsewhere"]
    assert node.calls("ray") == []


@pytest.mark.nightly
def test_dry_run_without_an_environment_takes_that_of_the_checkout_or_says_what_to_do(
    node: Node, tmp_path: Path
) -> None:
    # Of a checkout in which nothing is installed, and then of one with an environment.
    checkout = tmp_path / "checkout"
    for name in ("scripts", "configs", "cli", "mindrl", "pyproject.toml"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).symlink_to(Path(node.checkout, name))
    shutil.copytree(Path(node.checkout, "scripts"), tmp_path / "copied")
    (checkout / "scripts").unlink()
    (tmp_path / "copied").rename(checkout / "scripts")
    node.checkout = checkout

    nothing = node.run("--dry-run", PYTHON_IS_BARE="1", PATH="/usr/bin:/bin")
    assert nothing.returncode == 2
    assert "lacks the packages of mindrl; run scripts/install.sh, activate" in nothing.stderr
    assert "Traceback" not in nothing.stderr

    (checkout / ".venv").symlink_to(Path(sys.executable).parents[1])
    run_folder = f"hydra.run.dir={tmp_path / 'run'}"
    found = node.run("--dry-run", run_folder, PATH="/usr/bin:/bin", PYTHONPATH="")
    assert found.returncode == 0, found.stderr
    assert "the configuration is valid" in found.stdout


@pytest.mark.nightly
def test_python_alone_names_an_environment_with_its_ray(node: Node, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    environment.mkdir()
    for name in ("python", "ray"):
        (node.folder / "bin" / name).rename(environment / name)

    result = node.run("--check", PYTHON=str(environment / "python"))

    assert result.returncode == 0, result.stderr
    assert "ready, 8 NPU(s)" in result.stderr


def test_dry_run_accepts_the_configuration_that_is_shipped(node: Node) -> None:
    folder = f"hydra.run.dir={node.folder / 'run'}"
    result = node.run("--dry-run", folder, PYTHON=sys.executable, PYTHONPATH="")

    assert result.returncode == 0, result.stderr
    assert "the configuration is valid" in result.stdout
    assert "the run needs 8 NPU(s) on 1 node(s) of 8: NNODES=1" in result.stderr


@pytest.mark.parametrize(
    ("config", "arguments", "settings", "message"),
    [
        pytest.param(
            "grpo_qwen25_32b",
            (),
            {"NNODES": "1"},
            (
                "the run needs 16 NPU(s) (rl_config.actor_resource.num_npus), but NNODES=1 x "
                "NPUS_PER_NODE=8 is 8; set NNODES=2, or rl_config.actor_resource.num_npus=8 with "
                "matching layouts"
            ),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "grpo_qwen25_7b",
            ("rl_config.actor_resource.num_npus=4",),
            {"NPUS_PER_NODE": "8"},
            (
                "the run needs 4 NPU(s) (rl_config.actor_resource.num_npus), but NNODES=1 x "
                "NPUS_PER_NODE=8 is 8; set NPUS_PER_NODE=4, or rl_config.actor_resource.num_npus="
                "8 with matching layouts"
            ),
            marks=pytest.mark.nightly,
        ),
        (
            "grpo_qwen25_32b",
            (),
            {"NNODES": "2", "NPUS_PER_NODE": "8"},
            None,
        ),
        (
            "grpo_qwen25_32b",
            (),
            {"NNODES": "4", "NPUS_PER_NODE": "4"},
            (
                "rl_config.actor_resource.npus_per_node=8, and NPUS_PER_NODE=4; set "
                "rl_config.actor_resource.npus_per_node=4"
            ),
        ),
        ("grpo_qwen25_7b", rollout_on(8), {"NNODES": "2", "NPUS_PER_NODE": "8"}, None),
        (
            "grpo_qwen25_7b",
            rollout_on(4),
            {"NNODES": "1", "NPUS_PER_NODE": "8"},
            (
                f"the run needs 12 NPU(s) ({BOTH}), at most 8 on each of 2 nodes, but NNODES=1 x "
                f"NPUS_PER_NODE=8 is 8; set NNODES=2 and NPUS_PER_NODE=8, or {BOTH}=8 with "
                "matching layouts"
            ),
        ),
        (
            "grpo_qwen25_7b",
            rollout_on(5),
            {},
            (
                "error: generate_config.infer_tensor_parallel_size=2 must divide "
                "rl_config.rollout_resource.num_npus=5; nearest: 1, 5"
            ),
        ),
    ],
)
def test_a_dry_run_with_settings_says_whether_the_nodes_have_what_the_run_takes(
    node: Node,
    config: str,
    arguments: tuple[str, ...],
    settings: dict[str, str],
    message: str | None,
) -> None:
    node.script = ANY_RUN
    result = node.run(config, "--dry-run", *arguments, **settings)

    assert result.returncode == (0 if message is None else 2), result.stderr
    said = "the run needs 16 NPU(s) on 2 node(s) of 8: NNODES=2" if message is None else message
    assert result.stderr.splitlines()[-1].endswith(said)


def test_a_run_that_takes_more_npus_than_there_are_starts_no_ray(node: Node) -> None:
    node.script = ANY_RUN
    result = node.run("grpo_qwen3_8b_a3")

    assert result.returncode == 2
    assert "the run needs 16 NPU(s)" in result.stderr
    assert node.calls("ray") == []
    assert node.calls("python") == []


@pytest.mark.nightly
def test_any_run_of_the_configurations_starts_with_one_program(node: Node) -> None:
    node.script = ANY_RUN
    assert node.run("ppo_qwen25_7b", "--dry-run").returncode == 0
    (call,) = node.calls("python")
    options = ("--dry-run", "--elsewhere")
    assert call["arguments"] == ["cli/train.py", "--config-name", "ppo_qwen25_7b", *options]
    unknown = node.run("grpo_qwen25_8b")
    assert unknown.returncode == 2
    said = "configs/ has no configuration grpo_qwen25_8b; known: grpo_deepseek_r1_671b"
    assert said in unknown.stderr
    nothing = node.run()
    assert (nothing.returncode, nothing.stdout) == (2, node.run("--help").stdout)
    named = nothing.stdout.rpartition("CONFIG is one of: ")[2].split()
    assert {"grpo_qwen3_235b_a22b_a3", "ppo_qwen25_7b"} <= set(named)
    assert [name for name in named if name.endswith("_cpu")] == []


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
    assert "Ray token: missing, required for 2 nodes" in result.stderr


def test_a_head_address_that_is_loopback_is_refused(node: Node) -> None:
    result = node.run(NNODES="2", MASTER_ADDR="localhost", RAY_AUTH_TOKEN="0" * 32)

    assert result.returncode == 3
    assert "MASTER_ADDR=localhost: is 127.0.0.1 here" in result.stderr
