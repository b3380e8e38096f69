"""Batch files of Slurm with real runs: a requeued run resumes, and two nodes form one cluster."""

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ascend_node import ROOT, Node, ready_node
from slurm_cluster import Cluster

from mindrl.observability.metrics import computed

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1200)]

STEPS = 5


def steps(folder: Path) -> list[dict[str, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return [computed(line) for line in lines if "rollout/response_tokens" in line]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.end()


def test_a_run_that_is_requeued_before_its_time_limit_continues_to_the_same_numbers(
    cluster: Cluster, tiny_model: Path, tmp_path: Path
) -> None:
    asked = [f"actor_config.load={tiny_model}", f"megatron_training.train_iters={STEPS}"]
    settings = {"PYTHON": sys.executable}
    process = cluster.start("cpu", *asked, **settings)
    cluster.wait_for(f"step 2/{STEPS}", seconds=900)
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 130, err + cluster.output(0)
    assert cluster.requests() == ["requeue 17"]
    folder = Path(cluster.environment["RUN_FOLDER"])
    stopped_after = len(steps(folder))
    assert 2 <= stopped_after < STEPS

    code, err = cluster.run("cpu", *asked, **settings)
    assert code == 0, err + cluster.output(0)
    assert f"continues after step {stopped_after}" in cluster.output(0)

    straight = str(tmp_path / "straight")
    code, err = cluster.run("cpu", *asked, RUN_FOLDER=straight, **settings)
    assert code == 0, err
    assert steps(folder) == steps(Path(straight))


TRAINING = """
import signal
import sys
import time
import ray
ray.init(log_to_driver=False, logging_level="ERROR")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
print("NPU", ray.cluster_resources()["NPU"], "on", len(ray.nodes()), "nodes", flush=True)
time.sleep(600)
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from ready_node(tmp_path)


def own_address() -> str:
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if each.family.name == "AF_INET" and not each.address.startswith("127."):
                return each.address
    pytest.skip("this machine has no address but loopback")


def test_two_nodes_form_one_real_ray_and_end_together_before_the_time_limit(
    node: Node, cluster: Cluster
) -> None:
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed")
    checkout = node.folder / "checkout"
    for name in ("scripts", "examples"):
        shutil.copytree(ROOT / name, checkout / name)
    for name in ("configs", "mindrl"):
        (checkout / name).symlink_to(ROOT / name)
    (checkout / "cli").mkdir()
    (checkout / "cli/train.py").write_text(TRAINING)
    for name in ("ray", "python"):
        (node.folder / "bin" / name).unlink()
    shutil.rmtree(node.folder / "packages" / "ray")
    address = own_address()
    settings = node.environment | {
        "PATH": cluster.environment["PATH"],
        "PYTHON": sys.executable,
        "SLURM_JOB_NODELIST": f"{address},{address}",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_SUBMIT_DIR": str(checkout),
    }
    del settings["CALLS"]

    process = cluster.start("npu", "grpo_qwen25_32b", **settings)
    cluster.wait_for("NPU 16.0 on 2 nodes", seconds=600)
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=600)

    assert process.returncode == 130, err + cluster.output(0) + cluster.output(1)
    assert "the head has ended" in cluster.output(1)
    assert cluster.requests() == ["requeue 17"]
    here = str(checkout)
    running = psutil.process_iter(["cwd", "name"])
    assert [each.info for each in running if each.info["cwd"] == here] == []
