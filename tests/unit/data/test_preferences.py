"""Rows of preferences: TRL's forms, and rows that are refused."""

import json
from collections.abc import Callable
from copy import deepcopy
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
from checked_runs import MakeConfig, model_folder
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from mindrl.batch.prompts import (
    GradedSteps,
    LabelledAnswer,
    PreferencePair,
    Prompt,
    ScoredAnswer,
)
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

    def read(
        row: object,
        longest: int = 64,
        changed: PreTrainedTokenizerFast = tokenizer,
        template: str | None = None,
        **preference: Any,
    ) -> Prompt:
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(row) + "\n", "utf-8")
        given = {
            "megatron_training.prompt_column": "prompt",
            "megatron_training.seq_length": longest,
            "megatron_training.chat_template": template,
            "preference_config": preference,
        }
        config = run_config(model, given)
        return load_preferences(str(path), config, changed, (END,), Reading()).prompts[0]

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


def test_rows_of_a_reward_model_have_a_margin_or_a_score(load: Load) -> None:
    pair = load(
        {"prompt": "1+1=?", "chosen": "2", "rejected": "33", "by": 2},
        loss="bradley_terry",
        margin_column="by",
    )
    assert isinstance(pair, PreferencePair)
    assert pair.margin == 2.0
    scored = load({"prompt": "1+1=?", "completion": "2", "score": -0.5}, loss="score")
    assert isinstance(scored, ScoredAnswer)
    assert scored.score == -0.5
    assert [*compress(scored.token_ids, scored.targets)][-1] == END


@pytest.mark.parametrize(
    ("row", "keys", "reason"),
    [
        ({"score": float("nan")}, {"loss": "score"}, "NaN is not a JSON number"),
        ({"score": "good"}, {"loss": "score"}, "'score' holds \"good\"; needed a finite number"),
        ({}, {"loss": "score"}, "no column preference_config.score_column='score'"),
        (
            {"chosen": "2", "rejected": "3", "margin": True},
            {"loss": "bradley_terry", "margin_column": "margin"},
            "'margin' holds true; needed a finite number",
        ),
        (
            {"chosen": "2", "rejected": "2"},
            {"loss": "bradley_terry"},
            "the chosen and the rejected answer are equal",
        ),
        (
            {"completion": "2"},
            {"loss": "bradley_terry"},
            "no column preference_config.chosen_column",
        ),
    ],
)
def test_a_row_that_no_reward_model_learns_from_is_refused(
    row: dict[str, Any], keys: dict[str, Any], reason: str, load: Load
) -> None:
    answer = {} if "chosen" in row else {"completion": "2"}
    with pytest.raises(DataError) as refusal:
        load({"prompt": "1+1=?"} | answer | row, **keys)
    assert reason in str(refusal.value)


def test_a_sequence_leaves_a_position_for_its_score(load: Load) -> None:
    # One token more than the answer: the policy of a DPO run may fill the longest sequence.
    row = {"prompt": "1+1=?", "chosen": "2", "rejected": "3"}
    pair = load(row, loss="sigmoid")
    length = len(pair.token_ids)
    assert load(row, longest=length, loss="sigmoid").token_ids == pair.token_ids
    with pytest.raises(DataError, match=f"{length} tokens"):
        load(row, longest=length, loss="bradley_terry")


def test_a_row_of_mindspeed_rl_begins_with_its_system_message(load: Load) -> None:
    row = {"prompt": "1+1=?", "system": "Add.", "chosen": "2", "rejected": "33"}
    asked = load(row, system_column="system")
    assert isinstance(asked, PreferencePair)
    assert asked.chosen.text.startswith("<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user")
    without = load(row | {"system": ""}, system_column="system")
    assert "system" not in without.text
    with pytest.raises(DataError, match="'system' holds 3; needed text, or null"):
        load(row | {"system": 3}, system_column="system")


STEPS = {"prompt": "1+1=?", "completions": ["one", "two é", "2"], "labels": [True, 0.25, False]}


@pytest.mark.parametrize("template", [None, "plain"])
def test_the_last_token_of_each_step_is_a_target(
    template: str | None, load: Load, tokenizer: PreTrainedTokenizerFast
) -> None:
    found = load(STEPS, template=template, loss="steps", step_separator=", ")
    assert isinstance(found, GradedSteps)
    assert found.labels == (1.0, 0.25, 0.0)
    ends = [at for at, is_end in enumerate(found.targets) if is_end]
    texts = [tokenizer.decode(found.token_ids[: end + 1]) for end in ends]
    assert texts[0].endswith("one")
    assert texts[1].endswith("one, two é")
    assert found.token_ids[ends[2]] == END
    assert tokenizer.decode(found.token_ids[: ends[2]]).endswith("one, two é, 2")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"labels": [True, True]}, "has 3 steps and 2 labels; needed a label for each step"),
        ({"completions": "one"}, 'holds "one"; needed a list of texts, each with more'),
        ({"completions": ["one", " ", "2"]}, "needed a list of texts, each with more than spaces"),
        ({"completions": []}, "holds []; needed a list of texts"),
        ({"labels": [True, 2, False]}, "needed a list of true, false, or numbers from 0 to 1"),
        ({"labels": None}, "holds null; needed a list of true, false, or numbers from 0 to 1"),
    ],
)
def test_steps_that_no_reward_model_learns_from_are_refused(
    row: dict[str, Any], reason: str, load: Load
) -> None:
    with pytest.raises(DataError) as refusal:
        load(STEPS | row, loss="steps")
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_column_of_steps_that_is_not_there_is_named(load: Load) -> None:
    with pytest.raises(DataError, match=r"no column preference_config\.steps_column='completions'"):
        load({"prompt": "1+1=?", "completion": "2"}, loss="steps")


def test_two_steps_that_end_in_one_token_are_refused(load: Load) -> None:
    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"?": 0, "<end>": END}, unk_token="?")),
        eos_token="<end>",
    )
    with pytest.raises(DataError, match="two steps end in the same token; needed another"):
        load(STEPS, changed=words, template="plain", loss="steps")


def test_a_template_that_changes_the_answer_is_refused(
    load: Load, tokenizer: PreTrainedTokenizerFast
) -> None:
    loud = deepcopy(tokenizer)
    loud.chat_template = loud.get_chat_template().replace("['content']", "['content'] | upper")
    with pytest.raises(DataError, match="the chat template changes the answer, so its steps"):
        load(STEPS, changed=loud, loss="steps")
