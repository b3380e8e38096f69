"""What is wrong with a run is said before anything starts, by the checks that a program makes."""

from pathlib import Path

import pytest
from bad_inputs import CASES, Case, row

from mindrl.data.run_data import read_data
from mindrl.launch.reward_trials import try_all_rewards
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import check
from mindrl.programs.compose import composed_config
from mindrl.programs.exits import exit_code
from mindrl.tiny.chat_model import build_model, build_tokenizer

OF_A_PROGRAM = ("a run folder that cannot be written", "too few devices")
"""Noticed where the run folder is made, and where devices are asked for."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's model before its warm start, beside a data file of two rows."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder / "model")
    build_model(tokenizer, seed=1).save_pretrained(folder / "model")
    (folder / "rows.jsonl").write_text(f"{row('1+1=?')}\n{row('2+0=?')}\n")
    return folder


def prepared(overrides: list[str]) -> int:
    """Do what a training program does before it starts anything."""
    config = composed_config("grpo_tiny_cpu", overrides)
    check(config, PLATFORMS["cpu"])
    try_all_rewards(config, read_data(config))
    return 0


def answer(tiny: Path, more: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    files = [
        f"megatron_training.{key}={tiny}/rows.jsonl" for key in ("data_path", "test_data_path")
    ]
    files.append("data_config.test_overlap_policy=allow")
    overrides = [f"actor_config.load={tiny}/model", *files, *more]
    code = exit_code(lambda: prepared(overrides))
    return code, "".join(capsys.readouterr())


def test_the_run_that_is_spoilt_below_is_a_legal_one(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(tiny, [], capsys) == (0, "")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name) for name, case in CASES.items() if name not in OF_A_PROGRAM],
)
def test_bad_input_is_answered_with_the_exit_code_and_in_words(
    case: Case, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides, code, words = case
    found, text = answer(tiny, overrides(tiny / "model", tmp_path), capsys)
    assert found == code
    for word in words:
        assert word in text
