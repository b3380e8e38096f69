"""Rows of preferences: TRL's forms, and rows that are refused."""

import json
from collections.abc import Callable
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
from checked_runs import MakeConfig, model_folder
from transformers import PreTrainedTokenizerFast

from mindrl.batch.prompts import LabelledAnswer, PreferencePair, Prompt
from mindrl.data.preferences import load_preferences
from mindrl.data.reading import Reading
from mindrl.errors import DataError

END = 258
ASKED = {"role": "user", "content": "1+1=?"}
RIGHT, WRONG = ({"role": "assistant", "content": text} for text in ("2", "33"))
Load = Callable[..., Prompt]


@pytest.fixture
def load(tokenizer: PreTrainedTokenizerFast, run_config: MakeConfig, tmp_path: Path) -> Load:
    """Read one row; keys of `preference_config` change how."""
    model = model_folder(tmp_path / "model")

    def read(row: object, **preference: Any) -> Prompt:
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(row) + "\n", "utf-8")
        given = {
            "megatron_training.prompt_column": "prompt",
            "preference_config": preference,
        }
        config = run_config(model, given)
        return load_preferences(str(path), config, tokenizer, (END,), Reading()).prompts[0]

    return read


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "1+1=?", "chosen": "2", "rejected": "33"},
        {"prompt": [ASKED], "chosen": [RIGHT], "rejected": [WRONG]},
        {"chosen": [ASKED, RIGHT], "rejected": [ASKED, WRONG]},
    ],
)
def test_the_three_forms_of_a_pair_are_one_and_its_answers_end(
    row: object, load: Load, tokenizer: PreTrainedTokenizerFast
) -> None:
    pair = load(row)
    assert isinstance(pair, PreferencePair)
    for answer, text in ((pair.chosen, "2"), (pair.rejected, "33")):
        learned = [*compress(answer.token_ids, answer.targets)]
        assert learned == [*tokenizer(text, add_special_tokens=False)["input_ids"], END]
        assert "1+1=?" in answer.text
    assert pair.token_ids == pair.rejected.token_ids


@pytest.mark.parametrize(("label", "is_desirable"), [(True, True), (False, False), ("true", True)])
def test_an_answer_has_its_label(label: object, is_desirable: bool, load: Load) -> None:
    found = load({"prompt": "1+1=?", "completion": "2", "label": label}, loss="kto")
    assert isinstance(found, LabelledAnswer)
    assert found.is_desirable == is_desirable


@pytest.mark.parametrize(
    ("row", "preference", "wrong"),
    [
        (
            {"prompt": "a", "chosen": "2", "rejected": "2"},
            {},
            ":1: the chosen and the rejected answer are equal",
        ),
        ({"prompt": "a", "chosen": "", "rejected": "2"}, {}, "column 'chosen' holds \"\"; needed"),
        ({"prompt": "a", "win": "1", "rejected": "2"}, {}, "no column preference_config.chosen_co"),
        ({"chosen": "1", "rejected": "2"}, {}, "no column megatron_training.prompt_column"),
        ({"prompt": "a", "chosen": [RIGHT] * 2, "rejected": "2"}, {}, "holds 2 messages; needed"),
        ({"chosen": [ASKED], "rejected": [ASKED]}, {}, "the conversation ends with a question"),
        ({"prompt": "a", "completion": "1", "label": 1}, {"loss": "kto"}, "needed true or false"),
        ({"prompt": "a", "completion": "1"}, {"loss": "kto"}, "preference_config.label_column"),
    ],
)
def test_a_wrong_row_is_refused_in_one_line(
    row: object, preference: dict[str, object], wrong: str, load: Load
) -> None:
    with pytest.raises(DataError) as caught:
        load(row, **preference)
    assert wrong in str(caught.value)
    assert "\n" not in str(caught.value)
