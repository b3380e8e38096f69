"""`mindrl quickstart`, short of its run: refusals, what it makes, and the command it becomes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from user_programs import ROOT, without_torch

from mindrl.preflight.shipped import config_folder
from mindrl.programs.config_files import run_names
from mindrl.programs.quickstart import FAMILIES
from mindrl.programs.tiny import PICTURES
from mindrl.tiny.chat_model import build_model, build_tokenizer
from mindrl.tiny.questions import write_questions
from mindrl.tiny.recipe import UPDATES, Recipe, recipe_record

COMMAND = str(Path(sys.executable).with_name("mindrl"))


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("rl_config.n_sampels=3", "rl_config.n_sampels is not a configuration key"),
        ("rl_config.mini_batch_size=7", "must divide megatron_training.global_batch_size=32"),
    ],
)
def test_a_wrong_override_is_refused_before_anything_is_made(
    override: str, reason: str, tmp_path: Path
) -> None:
    ended = without_torch(COMMAND, "quickstart", override, folder=tmp_path)
    assert ended.returncode == 2
    assert reason in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_torch_it_names_what_to_install(tmp_path: Path) -> None:
    ended = without_torch(COMMAND, "quickstart", folder=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: training needs torch, megatron, vllm, which this Python")


def test_every_tiny_configuration_has_a_model_of_its_family() -> None:
    # The teacher of a distillation is trained first, by the same program.
    tiny = {name for name in run_names(config_folder()) if "tiny" in name}
    assert {*FAMILIES, PICTURES} == tiny - {"distill_tiny_cpu"}
    for name, family in FAMILIES.items():
        text = (config_folder() / f"{name}.yaml").read_text("utf-8")
        load = yaml.safe_load(text).get("actor_config", {}).get("load")
        assert (load == ".cache/tiny/moe_model") == (family == "qwen3_moe"), name


def test_it_keeps_what_is_up_to_date_and_starts_the_run_with_the_overrides(tmp_path: Path) -> None:
    tiny = tmp_path / ".cache/tiny"
    list(write_questions(tiny / "data", seed=1))
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tiny / "model")
    build_model(tokenizer, seed=1).save_pretrained(tiny / "model")
    recipe = Recipe(family="qwen2", updates=UPDATES["qwen2"])
    record = recipe_record(tiny / "data", 1, recipe, ROOT / "configs/sft_tiny_cpu.yaml")
    (tiny / "model/recipe.json").write_text(json.dumps(record))
    # Not imported by the run, as it is not by `mindrl train`.
    (tmp_path / "yaml.py").write_text("raise ImportError")
    ended = subprocess.run(
        [COMMAND, "quickstart", "--dry-run", "rl_config.n_samples_per_prompt=4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [line.rstrip() for line in ended.stdout.splitlines()]
    assert lines[:7] == [
        ".cache/tiny/data/train.jsonl: 4096 rows, up to date",
        ".cache/tiny/data/train_pairs.jsonl: 4096 rows, up to date",
        ".cache/tiny/data/train_steps.jsonl: 8192 rows, up to date",
        ".cache/tiny/data/test.jsonl: 256 rows, up to date",
        ".cache/tiny/data/test_pairs.jsonl: 256 rows, up to date",
        ".cache/tiny/data/test_steps.jsonl: 512 rows, up to date",
        ".cache/tiny/model: up to date",
    ]
    assert "sequences per step                128 (4 per prompt)" in lines
    assert lines[-1] == "the configuration is valid"
    assert [path.name for path in tmp_path.iterdir()] == [".cache", "yaml.py"]
