"""The self-test program: how trials are printed, and its documentation."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import check_without_files
from mindrl.programs.compose import composed_config
from mindrl.programs.self_test import line_of
from mindrl.self_test.trials import Trial

ROOT = Path(__file__).parents[3]
TALKATIVE = """
import ctypes, os
from mindrl.programs.exits import print_json, stdout_unspoilt
with stdout_unspoilt():
    print("Python")
    os.write(1, b"a system call")
    # Kept until the process ends, or somebody asks for it.
    ctypes.CDLL(None).printf(b"compiled code")
print_json({"failed": 0})
"""
TRIALS = (
    "start",
    "collectives",
    "copies",
    "offload and onload",
    "trainer and engine",
    "reshard",
    "log-prob gap",
)


def page(name: str) -> str:
    return (ROOT / "docs/how-to" / name).read_text("utf-8")


def test_figures_are_printed_with_their_units_and_an_error_behind_them() -> None:
    passed = {
        "seconds": 4.2,
        "to_host_gb_per_second": 1.25,
        "sent_bytes": 10_493_952.0,
        "tokens": 512.0,
        "mean_gap_nats": 2.3e-6,
    }
    words = "4.2 s, to host 1.25 GB/s, sent 10.49 MB, tokens 512, mean gap 2.3e-06 nats"
    assert str(line_of(Trial(what="all", passed=True, figures=passed))) == f"pass  all: {words}"
    failed = Trial(what="copies", passed=False, figures={"max_difference": 3.0}, error="too much")
    assert str(line_of(failed)) == "FAIL  copies: max difference 3; too much"


def test_json_stands_alone_on_stdout_whatever_packages_print() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TALKATIVE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"failed": 0}
    for said in ("Python", "a system call", "compiled code"):
        assert said in done.stderr


@pytest.mark.parametrize("name", ["doctor.md", "ascend.md"])
def test_each_trial_is_explained(name: str) -> None:
    explained = {
        word
        for row in re.findall(r"^\| ([a-z, -]+) \|", page(name), re.MULTILINE)
        for word in row.split(", ")
    }
    assert explained >= set(TRIALS)


def test_the_runs_of_the_first_half_hour_have_no_findings() -> None:
    text = page("ascend.md").replace("\\\n", " ")
    commands = re.findall(r"^    (python cli/train.*)$", text, re.MULTILINE)
    runs = [shlex.split(command)[4:] for command in commands]
    runs.append(["hydra.run.dir=a", "megatron_training.train_iters=3"])
    names = ["grpo_tiny_cpu", "grpo_tiny_cpu", "grpo_qwen25_7b"]
    for name, overrides in zip(names, runs, strict=True):
        config = composed_config(name, overrides)
        assert config.rl_config.device == "npu"
        # What is not here, such as a model, is no finding; anything else raises.
        check_without_files(config, PLATFORMS["npu"])
