"""What is shown while the tiny model is made."""

from pathlib import Path

import pytest
from transformers.utils import logging as transformers_logging

from mindrl.tiny.making import Teacher, make_model
from mindrl.tiny.questions import write_questions
from mindrl.tiny.recipe import Recipe, Skills

ROOT = Path(__file__).parents[3]


def stopped(*_: object) -> Path:
    raise LookupError


def test_making_a_model_shows_no_progress_bars_of_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers_logging.enable_progress_bar()
    data = tmp_path / "data"
    list(write_questions(data, seed=1))
    teacher = Teacher(config=ROOT / "configs/sft_tiny_cpu.yaml", run=stopped)
    with pytest.raises(LookupError):
        make_model(tmp_path / "model", data, 1, Recipe(), teacher)
    assert capsys.readouterr().err == ""


def test_the_skills_of_a_model_are_described_with_their_targets() -> None:
    assert Recipe().described(Skills(accuracy=0.398, skill=0.992)) == (
        "of 256 held-out questions, 39.8% are answered correctly (wanted: 20% to 50%); the model "
        "can write the careful answer to 99.2% (wanted: at least 93%)"
    )
