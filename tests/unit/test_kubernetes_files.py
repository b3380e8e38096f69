"""Manifests of Kubernetes start what mindrl has, with the devices of the run and no privileges."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mindrl.errors import MindrlError
from mindrl.programs.compose import composed_config
from mindrl.programs.entry import PROGRAMS

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted((ROOT / "examples/kubernetes").glob("*.yaml"))


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in MANIFESTS:
        yield file.stem, yaml.safe_load(file.read_text("utf-8"))


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pod specifications of a manifest."""
    spec = manifest["spec"]
    if manifest["kind"] == "Job":
        return [spec["template"]["spec"]]
    ray = spec.get("rayClusterSpec", spec)
    groups = [ray["headGroupSpec"], *ray["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def commands(name: str, manifest: dict[str, Any]) -> Iterator[list[str]]:
    """Yield each command line of mindrl in a manifest, its comments included."""
    for pod in pods(manifest):
        for each in [*pod.get("initContainers", []), *pod["containers"]]:
            words = [*each.get("command", []), *each.get("args", [])]
            if words[:2] == ["tini", "--"]:
                assert words[2:4] == ["bash", "/opt/mindrl/scripts/train_ascend.sh"]
                words = ["train", "--config-name", *words[4:]]
            if words:
                yield ["mindrl", *words]
    if entry := manifest["spec"].get("entrypoint"):
        yield shlex.split(entry)
    text = (ROOT / f"examples/kubernetes/{name}.yaml").read_text("utf-8")
    comment = "".join(line[1:] for line in text.splitlines() if line.startswith("#"))
    for found in re.findall(r"mindrl (?:tiny|train) [^&']+", comment.replace("\\", "")):
        yield shlex.split(found)


def test_every_command_of_a_manifest_exists_and_composes() -> None:
    found = [words for name, manifest in manifests() for words in commands(name, manifest)]
    assert len(found) >= 6
    composed = 0
    for _, program, *words in found:
        assert program in PROGRAMS
        if program == "train":
            _, name, *overrides = words
            overrides = [each for each in overrides if not each.startswith("hydra.")]
            composed_config(name, overrides)
            composed += 1
    assert composed >= 4
    with pytest.raises(MindrlError):
        composed_config("grpo_tiny_cpu", ["rl_config.grace=1"])


def test_the_devices_of_a_manifest_are_those_of_its_run() -> None:
    checked = []
    for name, manifest in manifests():
        limits = [pod["containers"][0]["resources"]["limits"] for pod in pods(manifest)]
        devices = [each.get("huawei.com/Ascend910", 0) for each in limits]
        if not any(devices):
            continue
        checked.append(name)
        (run,) = (composed_config(words[3], []) for words in commands(name, manifest))
        resource = run.rl_config.actor_resource
        assert sum(devices) == resource.num_npus, name
        assert set(devices) == {min(resource.num_npus, resource.npus_per_node)}, name
        if manifest["kind"] == "RayJob":
            ray = manifest["spec"]["rayClusterSpec"]
            for group in (ray["headGroupSpec"], *ray["workerGroupSpecs"]):
                (started,) = shlex.split(group["rayStartParams"]["resources"])
                assert json.loads(started) == {"NPU": devices[0]}
    assert checked == ["job", "rayjob"]


def test_pods_have_no_privileges_and_ray_requires_a_token_and_this_release() -> None:
    release = re.search(r"ray==([\d.]+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    assert release
    for name, manifest in manifests():
        for pod in pods(manifest):
            security = pod["securityContext"]
            assert security["runAsNonRoot"] is True
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            assert pod["automountServiceAccountToken"] is False
            assert not any("hostPath" in volume for volume in pod["volumes"]), name
            assert "hostNetwork" not in pod
            for each in [*pod.get("initContainers", []), *pod["containers"]]:
                own = each["securityContext"]
                assert own["allowPrivilegeEscalation"] is False
                assert own["capabilities"] == {"drop": ["ALL"]}
                assert each["resources"]["limits"] == each["resources"]["requests"]
                mounted = {mount["name"] for mount in each["volumeMounts"]}
                assert mounted == {volume["name"] for volume in pod["volumes"]}
        if manifest["kind"] != "Job":
            ray = manifest["spec"].get("rayClusterSpec", manifest["spec"])
            assert ray["authOptions"] == {"mode": "token"}
            assert ray["rayVersion"] == release[1]
            assert ray["headGroupSpec"]["serviceType"] == "ClusterIP"


def test_a_job_stops_with_a_checkpoint_and_does_not_repeat_what_cannot_run() -> None:
    jobs = {name: each for name, each in manifests() if each["kind"] == "Job"}
    assert jobs.keys() == {"job", "job_cpu"}
    for manifest in jobs.values():
        (pod,) = pods(manifest)
        args = dict(each.partition("=")[::2] for each in pod["containers"][0]["args"])
        grace = int(args["rl_config.grace_seconds"])
        assert grace + 10 <= pod["terminationGracePeriodSeconds"]
        assert pod["restartPolicy"] == "Never"
    ignore, fail = jobs["job"]["spec"]["podFailurePolicy"]["rules"]
    assert (ignore["action"], fail["action"]) == ("Ignore", "FailJob")
    assert fail["onExitCodes"]["values"] == [2, 3]
    page = (ROOT / "docs/reference/exit-codes.md").read_text("utf-8")
    assert "2 wrong settings" in page
    assert "3 this node is not ready" in page
