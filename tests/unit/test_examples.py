"""Each example has a header that starts it, and a configuration that can run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mindrl.programs.compose import composed_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
RUNS = sorted(
    each for each in FOLDER.glob("*.*") if each.name not in ("demonstrations.py", "README.md")
)
CONFIGS = [each for each in RUNS if each.suffix == ".yaml"]


def test_every_example_is_in_the_table_and_executed_by_a_test() -> None:
    assert len(RUNS) >= 5
    table = (FOLDER / "README.md").read_text("utf-8")
    tests = (ROOT / "tests/e2e/test_examples.py").read_text("utf-8")
    assert [each.name for each in RUNS if f"({each.name})" not in table] == []
    assert [each.name for each in RUNS if f'"{each.name}"' not in tests] == []


@pytest.mark.parametrize("example", RUNS, ids=lambda each: each.name)
def test_a_header_has_the_command_what_it_shows_and_what_it_needs(example: Path) -> None:
    text = example.read_text("utf-8")
    program = {".py": "python", ".sh": "bash", ".yaml": "mindrl train --config-name"}
    command = f"{program[example.suffix]} examples/{example.name}"
    assert re.search(rf"^(#   |    ){re.escape(command)}", text, re.MULTILINE)
    assert re.search(r"^(# )?Shows: ", text, re.MULTILINE)
    assert "First, once: mindrl tiny --output .cache/tiny" in text


@pytest.mark.parametrize("example", CONFIGS, ids=lambda each: each.name)
def test_a_configuration_composes_and_changes_what_its_header_claims(example: Path) -> None:
    config = composed_config(str(example), [])
    shown = {
        "lora.yaml": config.actor_config.lora.r == 16,
        "own_recipe.yaml": config.rl_config.filter_groups_enable,
        "separate_devices.yaml": config.rl_config.step_order == "asynchronous",
    }
    assert shown[example.name]


def test_the_reward_of_the_python_example_gives_a_part_for_a_near_miss() -> None:
    code = r"""
import sys
sys.path.insert(0, "examples")
from own_reward import near
print([near(rf"\boxed{{{each}}}", "85") for each in ("85", "84", "7", "x")])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    scores = [float(each) for each in re.findall(r"'score': ([\d.]+)", done.stdout)]
    assert scores == [1.0, 0.475, 0.0, 0.0]
    assert done.stdout.count("True") == 1
