"""`mindrl tiny`, short of its run: what is kept, the command it prints, and its refusals."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from user_programs import without_torch

from mindrl.programs.compose import composed_config
from mindrl.programs.entry import start
from mindrl.programs.tiny import teacher
from mindrl.tiny.questions import write_questions
from mindrl.tiny.recipe import UPDATES, Family, Recipe, TaughtRow, recipe_record

COMMAND = str(Path(sys.executable).with_name("mindrl"))
CONFIG = Path(__file__).parents[3] / "configs/sft_tiny_cpu.yaml"


def made(folder: Path, family: Family) -> None:
    """Leave data in a folder, and what looks like a model of the present recipe."""
    list(write_questions(folder / "data", seed=1))
    recipe = Recipe(family=family, updates=UPDATES[family])
    record = recipe_record(folder / "data", 1, recipe, CONFIG)
    (folder / "model").mkdir()
    (folder / "model/recipe.json").write_text(json.dumps(record))


@pytest.mark.parametrize("name", ["tiny", "it's a=b, ${c}"])
@pytest.mark.parametrize("family", get_args(Family))
def test_what_is_up_to_date_is_kept_and_the_command_that_trains_it_is_printed(
    family: Family,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / name
    made(folder, family)
    monkeypatch.setattr("sys.argv", ["tiny", "--output", str(folder), "--family", family])
    assert start("tiny") == 0
    *lines, command = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{folder}/data/train.jsonl: 4096 rows, up to date",
        f"{folder}/data/train_pairs.jsonl: 4096 rows, up to date",
        f"{folder}/data/train_steps.jsonl: 8192 rows, up to date",
        f"{folder}/data/test.jsonl: 256 rows, up to date",
        f"{folder}/data/test_pairs.jsonl: 256 rows, up to date",
        f"{folder}/data/test_steps.jsonl: 512 rows, up to date",
        f"{folder}/model: up to date",
        "train it:",
    ]
    mindrl, program, option, config_name, *overrides = shlex.split(command)
    assert (mindrl, program, option) == ("mindrl", "train", "--config-name")
    assert (
        config_name
        == {
            "qwen2": "grpo_tiny_cpu",
            "qwen3_moe": "grpo_tiny_moe_cpu",
            "qwen3_5_text": "grpo_qwen35_tiny_cpu",
            "qwen3_5_moe_text": "grpo_qwen35_moe_tiny_cpu",
        }[family]
    )
    config = composed_config(config_name, overrides)
    assert config.actor_config.load == f"{folder}/model"
    assert config.megatron_training.data_path == f"{folder}/data/train.jsonl"
    assert config.megatron_training.test_data_path == f"{folder}/data/test.jsonl"


@pytest.mark.parametrize("seed", ["-1", "x", str(1 << 32)])
def test_a_seed_that_no_generator_takes_is_refused(
    seed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["tiny", "--output", str(tmp_path / "new"), f"--seed={seed}"])
    with pytest.raises(SystemExit, match="2"):
        start("tiny")
    assert f"{seed} must be a whole number from 0 to 4294967295" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", [("--tools",), ("--family", "qwen2")])
def test_an_option_without_effect_on_pictures_is_refused(
    option: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    given = ["tiny", "--output", str(tmp_path / "new"), *option, "--pictures"]
    monkeypatch.setattr("sys.argv", given)
    assert start("tiny") == 2
    assert f"{option[0]} has an effect only without --pictures" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("family", [each for each in get_args(Family) if each != "qwen2"])
def test_a_tool_user_of_another_family_is_refused(
    family: Family,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    given = ["tiny", "--output", str(tmp_path / "new"), "--tools", "--family", family]
    monkeypatch.setattr("sys.argv", given)
    assert start("tiny") == 2
    assert "--tools has an effect only with --family qwen2; leave" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_a_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    ended = without_torch(COMMAND, "tiny", "--output", "mine", folder=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == "error: mine/data/train.jsonl cannot be written: Not a directory\n"
    assert (tmp_path / "mine").read_text() == "precious"


def test_without_torch_it_says_what_to_install(tmp_path: Path) -> None:
    ended = without_torch(COMMAND, "tiny", "--output", "new", folder=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: training needs torch, megatron, vllm, which this Python")


def test_the_run_that_makes_a_model_is_announced_and_has_its_folder_next_to_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Path] = []

    def rows() -> Iterator[TaughtRow]:
        started.extend(tmp_path.glob("tiny/runs/*/*/.hydra/config.yaml"))
        raise InterruptedError
        yield {}

    monkeypatch.chdir(tmp_path)
    model, recipe = tmp_path / "tiny/model", Recipe(updates=460)
    model.mkdir(parents=True)
    with pytest.raises(InterruptedError):
        teacher(model).run(rows(), recipe.sections(model))
    out = capsys.readouterr().out
    assert out.startswith(f"making {model}: supervised fine-tuning, 46 steps\n")
    assert len(started) == 1
    assert not (tmp_path / "outputs").exists()
