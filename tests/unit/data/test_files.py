"""The forms in which people bring data: several files, folders, patterns, four formats, verl's."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import PreTrainedTokenizerFast

from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.rl import RLConfig
from mindrl.data.files import files_of
from mindrl.data.prompts import PromptSet, load_prompts
from mindrl.errors import DataError

TRAINING = MegatronTrainingConfig(
    train_iters=1, global_batch_size=1, seq_length=128, data_path="train.jsonl"
)
RL = RLConfig(mini_batch_size=1, max_prompt_length=64)


def row(number: int) -> dict[str, str]:
    return {"messages": f"{number}+0", "answer": f"{number}"}


def written(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows in the format of the suffix."""
    match path.suffix:
        case ".parquet":
            datasets.Dataset.from_list([*rows]).to_parquet(path)
        case ".csv":
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, rows[0].keys())
                writer.writeheader()
                writer.writerows(rows)
        case ".json":
            path.write_text(json.dumps(rows, indent=1))
        case _:
            path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return path


@pytest.fixture
def load(tokenizer: PreTrainedTokenizerFast) -> Any:
    def load(*paths: Path | str, **keys: Any) -> PromptSet:
        given = tuple(map(str, paths))
        training = replace(TRAINING, **keys)
        return load_prompts(given[0] if len(given) == 1 else given, training, RL, tokenizer)

    return load


def answers(found: PromptSet) -> list[str]:
    return [prompt.answer for prompt in found.prompts]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv"])
def test_each_format_gives_the_same_prompts(suffix: str, load: Any, tmp_path: Path) -> None:
    rows = [row(7), {"messages": 'a, "b"\nc', "answer": "007"}]
    found = load(written(tmp_path / f"rows{suffix}", rows))
    assert answers(found) == ["7", "007"]
    assert 'a, "b"\nc' in found.prompts[1].text
    assert found.prompts == load(written(tmp_path / "other.jsonl", rows)).prompts


def test_a_json_file_with_an_object_a_line_is_read_too(load: Any, tmp_path: Path) -> None:
    lines = written(tmp_path / "rows.jsonl", [row(0), row(1)])
    assert answers(load(lines.rename(tmp_path / "rows.json"))) == ["0", "1"]


def test_files_folders_and_patterns_are_read_in_their_order_and_numbered_on(
    load: Any, tmp_path: Path
) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    for number in (10, 2, 3):
        written(parts / f"train-{number:02}.parquet", [row(number)])
    (parts / "README.md").write_text("not data")
    alone = written(tmp_path / "alone.csv", [row(99)])
    found = load(alone, parts)
    assert answers(found) == ["99", "2", "3", "10"]
    assert [prompt.uid for prompt in found.prompts] == [0, 1, 2, 3]
    assert found.path == f"{alone}, {parts}"
    assert answers(load(f"{parts}/train-0*.parquet")) == ["2", "3"]


def test_a_folder_of_what_trains_and_what_tests_is_not_trained_on_as_a_whole(
    tmp_path: Path,
) -> None:
    for name in ("train-0.jsonl", "test-0.jsonl"):
        written(tmp_path / name, [row(0)])
    with pytest.raises(DataError) as caught:
        files_of(str(tmp_path))
    assert str(caught.value) == (
        f"folder {tmp_path} has test-0.jsonl beside train-0.jsonl; list its files, or "
        f"write {tmp_path}/train*"
    )
    assert files_of(f"{tmp_path}/train*") == (f"{tmp_path}/train-0.jsonl",)


def test_a_folder_whose_data_lies_deeper_says_where(tmp_path: Path) -> None:
    for name in ("main", "socratic"):
        (tmp_path / name).mkdir()
        written(tmp_path / name / "train.jsonl", [row(0)])
    with pytest.raises(DataError) as caught:
        files_of(str(tmp_path))
    assert str(caught.value).endswith(f"; below it {tmp_path}/main, {tmp_path}/socratic do")


def test_a_file_is_not_read_twice(tmp_path: Path) -> None:
    file = str(written(tmp_path / "a.jsonl", [row(0)]))
    with pytest.raises(DataError, match=r"a\.jsonl is listed more than once"):
        files_of((file, str(tmp_path)))


def test_one_empty_file_of_several_is_named(load: Any, tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").touch()
    with pytest.raises(DataError, match=r"b\.jsonl: no rows"):
        load(written(tmp_path / "a.jsonl", [row(0)]), tmp_path / "b.jsonl")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("messages,answer\n1+1,2\n2+2\n", "rows.csv:3: 1 values; the first line names 2 columns"),
        ("messages,answer,answer\n1+1,2,3\n", "rows.csv: 2 columns have the name 'answer'"),
        ('messages,answer\n"1\n+1",2\n2+2,4,5\n', "rows.csv:4: 3 values; the first line names 2"),
        ("question;answer\n1+1;2\n", "found: question;answer"),
        ('messages,answer\n"1+1"x,2\n', "not CSV: ',' expected after '\"'"),
        (
            "messages,answer\n\"[{'role': 'user', 'content': '1+1'}]\",2\n",
            "rows.csv:2: column 'messages' holds messages written as text; needed a list of them",
        ),
    ],
)
def test_a_bad_line_of_csv_is_named(text: str, words: str, load: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        load(tmp_path / "rows.csv")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[{}, 5]", "row 1 counted from 0: a int; needed a JSON object"),
        ('[{"messages": "a"},\n]', "rows.json: not JSON: "),
        ('[{"messages": "a",\n "answer": }]', "Expecting value at character 12 of line 2"),
    ],
)
def test_a_bad_json_list_is_named(text: str, words: str, load: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(DataError) as caught:
        load(tmp_path / "rows.json", prompt_column="x" if "{}" in text else "messages")
    assert words in str(caught.value) or "no column" in str(caught.value)


VERL: dict[str, Any] = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "1+1=?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "train", "index": 0},
}


def test_rows_of_verl_are_read_without_naming_a_column(load: Any, tmp_path: Path) -> None:
    found = load(written(tmp_path / "train.parquet", [VERL]))
    [prompt] = found.prompts
    assert (prompt.answer, prompt.source) == ("2", "openai/gsm8k")
    assert "1+1=?" in prompt.text
    assert found.note == ", verl's row format"


def test_dots_lead_into_a_column_and_a_whole_name_comes_first(load: Any, tmp_path: Path) -> None:
    keys = {"prompt_column": "prompt", "answer_column": "extra_info.index"}
    assert answers(load(written(tmp_path / "a.jsonl", [VERL]), **keys)) == ["0"]
    dotted = VERL | {"extra_info.index": "whole"}
    assert answers(load(written(tmp_path / "b.jsonl", [dotted]), **keys)) == ["whole"]


def test_a_missing_inner_column_is_answered_with_all_that_there_are(
    load: Any, tmp_path: Path
) -> None:
    file = written(tmp_path / "a.jsonl", [VERL])
    with pytest.raises(DataError) as caught:
        load(file, prompt_column="prompt", answer_column="reward_model.truth")
    assert str(caught.value) == (
        f"{file}:1: no column megatron_training.answer_column='reward_model.truth'; found: "
        "data_source, prompt, ability, reward_model.style, reward_model.ground_truth, "
        "extra_info.split, extra_info.index; did you mean 'reward_model.ground_truth'?"
    )


def test_rows_without_an_answer_are_read_where_no_column_is_asked_for(
    load: Any, tmp_path: Path
) -> None:
    file = written(tmp_path / "a.jsonl", [{"prompt": "Tell a joke."}])
    assert answers(load(file, prompt_column="prompt", answer_column=None)) == [""]
