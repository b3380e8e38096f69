"""Each example of examples/, started by the command of its header."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from program import CHECKOUT

# One or two minutes each; that their configurations are legal is in tests/unit/test_examples.py.
pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1200)]


def started(example: str, *arguments: str, folder: Path) -> str:
    """Run the command in the header of an example; return its output."""
    text = (CHECKOUT / "examples" / example).read_text("utf-8")
    (command,) = re.findall(
        r"^(?:#   |    )((?:python|bash|mindrl) .*examples/\S+)", text, re.MULTILINE
    )
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"COLUMNS": "200", "PATH": tools, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [*command.split(), *arguments],
        cwd=folder,
        env=os.environ | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """Make a folder that looks like a checkout, for the outputs."""
    (tmp_path / ".cache").symlink_to(tiny_model.parents[1])
    (tmp_path / "examples").symlink_to(CHECKOUT / "examples")
    return tmp_path


def summary(folder: Path, pattern: str) -> dict[str, Any]:
    (file,) = folder.glob(f"{pattern}/summary.json")
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def metrics(folder: Path, pattern: str, name: str) -> Sequence[float]:
    (file,) = folder.glob(f"{pattern}/metrics.jsonl")
    lines = map(json.loads, file.read_text("utf-8").splitlines())
    return [line[name] for line in lines if name in line]


def gain(found: dict[str, Any]) -> float:
    return float(found["accuracy_after"]) - float(found["accuracy_before"])


def test_own_reward_learns_from_rows_made_in_python(folder: Path) -> None:
    printed = started("own_reward.py", folder=folder)
    assert gain(summary(folder, "outputs/*/*")) > 0.3
    assert re.search(
        r"^(stopped|completed) after \d+ steps: accuracy 0\.\d+ -> ", printed, re.MULTILINE
    )
    assert max(metrics(folder, "outputs/*/*", "reward/near")) > 0.8


def test_own_recipe_replaces_groups_without_a_signal(folder: Path) -> None:
    started("own_recipe.yaml", folder=folder)
    assert gain(summary(folder, "outputs/*/*")) > 0.3
    drawn = metrics(folder, "outputs/*/*", "groups/drawn")
    assert len(drawn) == 10
    assert max(drawn) > 32  # prompts of a step
    assert max(metrics(folder, "outputs/*/*", "groups/without_signal")) > 0.1


def test_sft_then_grpo_starts_from_the_warm_model_and_learns_on(folder: Path) -> None:
    started("sft_then_grpo.sh", "run", folder=folder)
    learned = metrics(folder, "run/sft", "sft/loss")
    assert learned[-1] < learned[0]
    found = summary(folder, "run/grpo")
    # The tiny model itself is right at 0.33 of the prompts.
    assert found["accuracy_before"] > 0.5
    assert found["accuracy_after"] > max(0.95, found["accuracy_before"])


def test_lora_exports_adapters_and_the_merged_model(folder: Path) -> None:
    started("lora.yaml", folder=folder)
    assert gain(summary(folder, "outputs/*/*")) > 0.3
    (model,) = folder.glob("outputs/*/*/model")
    assert (model / "adapter/adapter_config.json").is_file()
    assert (model / "model.safetensors").is_file()


def test_separate_devices_learn_within_their_staleness(folder: Path) -> None:
    started("separate_devices.yaml", folder=folder)
    assert gain(summary(folder, "outputs/*/*")) > 0.3
    assert 0 < max(metrics(folder, "outputs/*/*", "staleness/max")) <= 2


def test_two_jobs_learn_and_are_measured_before_and_after(folder: Path) -> None:
    started("two_jobs.sh", "run", folder=folder)
    before, after = (
        metrics(folder, f"run/{when}", "eval/test/avg@1")[-1] for when in ("before", "after")
    )
    assert after > before + 0.2
