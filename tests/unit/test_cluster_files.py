"""Batch files of Slurm start what mindrl has, and stop and requeue it as they claim.

The batch files are the real ones; what stands for Slurm is in slurm_cluster.
"""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ascend_node import ROOT, write_program
from slurm_cluster import Cluster

BATCHES = sorted((ROOT / "examples/slurm").glob("*.sbatch"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.end()


def directives(batch: Path) -> dict[str, str]:
    found = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", batch.read_text("utf-8"), re.MULTILINE)
    return dict(found)


def test_a_batch_file_is_warned_before_the_end_and_may_be_requeued() -> None:
    assert [file.stem for file in BATCHES] == ["cpu", "npu", "npu_docker"]
    common = (ROOT / "examples/slurm/job.sh").read_text("utf-8")
    (grace,) = re.findall(r"GRACE_SECONDS=(\d+)", common)
    for batch in BATCHES:
        asked = directives(batch)
        assert asked.keys() >= {"requeue", "nodes", "time"}, batch
        shell, name, seconds = re.split("[:@]", asked["signal"])
        assert (shell, name) == ("B", "USR1")
        assert int(grace) < int(seconds)
        assert asked["open-mode"] == "append"  # a requeue keeps the log


def test_each_node_runs_the_command_with_its_rank_and_one_secret(cluster: Cluster) -> None:
    code, err = cluster.run("cpu", "megatron_training.seed=3", SLURM_JOB_NUM_NODES="2")
    assert code == 0, err
    folder = cluster.environment["RUN_FOLDER"]
    for rank in (0, 1):
        line, mode = cluster.output(rank).splitlines()
        assert line.startswith(f"node {rank} of 2 at 127.0.0.1: cli/train.py --config-name ")
        assert f" hydra.run.dir={folder} " in line
        assert line.endswith(" megatron_training.seed=3")  # last, so it wins
        assert mode == "600"
    assert list(Path(folder).iterdir()) == []  # no secret is left
    assert cluster.requests() == []


@pytest.mark.parametrize("code", [1, 2, 3, 4, 130])
def test_a_failure_and_an_own_stop_end_the_job_with_their_code(cluster: Cluster, code: int) -> None:
    ended, _ = cluster.run("cpu", CODE=str(code))
    assert ended == code
    assert cluster.requests() == []


@pytest.mark.parametrize("code", [130, 143])
def test_before_the_time_limit_the_first_node_stops_and_the_job_is_requeued(
    cluster: Cluster, code: int
) -> None:
    process = cluster.start("cpu", TENTHS="600", STOP_CODE=str(code))
    cluster.wait_for("600")
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "stopped" in cluster.output(0)
    assert cluster.requests() == ["requeue 17"]


def test_a_run_that_completes_before_the_time_limit_is_not_requeued(cluster: Cluster) -> None:
    process = cluster.start("cpu", TENTHS="600", STOP_CODE="0")
    cluster.wait_for("600")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert cluster.requests() == []


def test_a_cancelled_job_waits_for_its_program_and_is_not_requeued(cluster: Cluster) -> None:
    process = cluster.start("cpu", TENTHS="10", CODE="130")
    cluster.wait_for("600")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped" not in cluster.output(0)  # Slurm signals the steps itself
    assert cluster.requests() == []


@pytest.mark.nightly
def test_two_npu_nodes_accept_the_command_of_the_batch_file(cluster: Cluster) -> None:
    code, err = cluster.run(
        "npu", "grpo_qwen25_32b", "--dry-run", SLURM_JOB_NUM_NODES="2", PYTHON=sys.executable
    )
    assert code == 0, err + cluster.output(0)
    for rank in (0, 1):
        assert "the run needs 16 NPU(s) on 2 node(s) of 8: NNODES=2" in cluster.output(rank)


def test_the_container_gets_the_devices_of_its_node_and_no_privileges(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "docker.sh").write_text('printf "%s\\n" "$@"\n')
    write_program(tmp_path / "bin/docker", f"bash {tmp_path / 'docker.sh'}")
    (tmp_path / "stat.sh").write_text("echo 1234\n")
    write_program(tmp_path / "bin/stat", f"bash {tmp_path / 'stat.sh'}")
    code, err = cluster.run(
        "npu_docker", "grpo_qwen25_32b", IMAGE="mindrl:a2", SHARED=str(tmp_path), NODE_RANK=""
    )
    assert code == 0, err
    words = cluster.output(0).split()
    assert words[:3] == ["run", "--rm", "--init"]
    assert "--privileged" not in words
    assert words[words.index("--group-add") + 1] == "1234"
    given = [words[at + 1] for at, word in enumerate(words) if word == "--device"]
    assert given[-3:] == ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    mounted = [words[at + 1] for at, word in enumerate(words) if word == "--volume"]
    assert mounted[0] == f"{tmp_path}:{tmp_path}"
    assert all(each.endswith(":ro") for each in mounted[1:])
    image = words.index("mindrl:a2")
    assert words[image + 1 : image + 3] == [
        "/opt/mindrl/scripts/train_ascend.sh",
        "grpo_qwen25_32b",
    ]
    passed = [words[at + 1] for at, word in enumerate(words) if word == "--env"]
    assert {"NNODES", "NODE_RANK", "MASTER_ADDR", "RAY_AUTH_TOKEN_PATH"} <= set(passed)
