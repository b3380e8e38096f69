"""From rows of a file to prompts as token ids."""

import json
import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerFast

from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.rl import RLConfig
from mindrl.data.prompts import PromptSet, load_prompts
from mindrl.data.rows import read_rows
from mindrl.errors import DataError

QUESTION = {"role": "user", "content": "12+35=?"}
ROW = {"messages": [QUESTION], "answer": "47"}
RENDERED = "<|im_start|>user\n12+35=?<|im_end|>\n<|im_start|>assistant\n"


TRAINING = MegatronTrainingConfig(
    train_iters=1, global_batch_size=1, seq_length=128, data_path="train.jsonl"
)
RL = RLConfig(mini_batch_size=1, max_prompt_length=64)


def read(path: Path, tokenizer: PreTrainedTokenizerFast, **changes: Any) -> PromptSet:
    """Load a file with keys of either section changed."""
    of_rl = {key: value for key, value in changes.items() if hasattr(RL, key)}
    of_training = {key: value for key, value in changes.items() if key not in of_rl}
    return load_prompts(
        str(path), replace(TRAINING, **of_training), replace(RL, **of_rl), tokenizer
    )


class Loader:
    """Writes lines to a file and loads them."""

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        self.path = folder / "train.jsonl"
        self.tokenizer = tokenizer

    def rows(self, *rows: Any, **changes: Any) -> PromptSet:
        return self.text("".join(json.dumps(row) + "\n" for row in rows), **changes)

    def text(self, text: str, **changes: Any) -> PromptSet:
        return self.content(text.encode(), **changes)

    def content(self, content: bytes, **changes: Any) -> PromptSet:
        self.path.write_bytes(content)
        return read(self.path, self.tokenizer, **changes)


@pytest.fixture
def load(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Loader:
    return Loader(tmp_path, tokenizer)


def test_messages_become_the_token_ids_that_the_chat_template_gives(
    load: Loader, tokenizer: PreTrainedTokenizerFast
) -> None:
    (prompt,) = load.rows(ROW).prompts
    expected = tokenizer.apply_chat_template(
        [QUESTION], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert list(prompt.token_ids) == expected
    assert len(prompt.token_ids) == 15
    assert prompt.text == RENDERED
    assert (prompt.uid, prompt.answer) == (0, "47")


def test_a_plain_string_is_one_message_of_the_user(load: Loader) -> None:
    row = {"messages": "12+35=?", "answer": "47"}
    assert load.rows(row) == load.rows(ROW)


def test_a_system_prompt_comes_first(load: Loader) -> None:
    (prompt,) = load.rows(ROW, system_prompt="Add.").prompts
    assert prompt.text == f"<|im_start|>system\nAdd.<|im_end|>\n{RENDERED}"


def test_a_gsm8k_style_file_works_by_its_column_names(load: Loader) -> None:
    row = {"question": "Natalia sold 48 clips. How many?", "answer": "48/2 = 24\n#### 72"}
    (prompt,) = load.rows(row, prompt_column="question").prompts
    assert "Natalia sold 48 clips." in prompt.text
    assert prompt.answer == "48/2 = 24\n#### 72"


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        (72, "72"),
        (-1, "-1"),
        (0.5, "0.5"),
        (2**70, "1180591620717411303424"),
        ("2024-01-01", "2024-01-01"),
        ("007", "007"),
        (" 47 ", " 47 "),
    ],
)
def test_numbers_become_text_and_text_stays_as_it_is(
    load: Loader, answer: object, reference: str
) -> None:
    assert load.rows(ROW | {"answer": answer}).prompts[0].answer == reference


def test_each_row_keeps_its_number_over_blank_lines_and_a_byte_order_mark(load: Loader) -> None:
    line = json.dumps(ROW).encode()
    prompts = load.content(b"\xef\xbb\xbf" + line + b"\r\n\n  \n" + line).prompts
    assert [prompt.uid for prompt in prompts] == [0, 1]


def test_parquet_and_jsonl_give_equal_prompts(
    load: Loader, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = [ROW | {"answer": number} for number in range(3)]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "train.parquet")
    loaded = read(tmp_path / "train.parquet", tokenizer)
    assert loaded.prompts == load.rows(*rows).prompts
    assert [prompt.answer for prompt in loaded.prompts] == ["0", "1", "2"]


def test_a_parquet_file_that_changes_within_a_second_is_read_anew(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    path = tmp_path / "train.parquet"
    for answer in ("47", "48"):
        datasets.Dataset.from_list([ROW | {"answer": answer}]).to_parquet(path)
        assert read(path, tokenizer).prompts[0].answer == answer


def test_reading_parquet_writes_no_copy_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "train.parquet", tmp_path / "temporary"
    folder.mkdir()
    rows = [{"answer": str(number)} for number in range(600)]
    datasets.Dataset.from_list(rows).to_parquet(path, batch_size=250)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    changed = folder.stat().st_mtime_ns
    found = [*read_rows(str(path))]
    assert folder.stat().st_mtime_ns == changed
    assert [row.values for row in found] == rows
    assert found[-1].place == f"{path}, row 599 counted from 0"


def test_reading_parquet_leaves_the_progress_bars_of_others_as_they_were(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.parquet"
    datasets.Dataset.from_list([ROW]).to_parquet(path)
    capfd.readouterr()
    before = datasets.are_progress_bars_disabled()
    read(path, tokenizer)
    assert datasets.are_progress_bars_disabled() == before
    assert capfd.readouterr() == ("", "")


def test_a_bad_row_of_a_parquet_file_is_named_by_its_number(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    path = tmp_path / "train.parquet"
    datasets.Dataset.from_list([ROW, ROW | {"answer": None}]).to_parquet(path)
    with pytest.raises(DataError, match=r"row 1 counted from 0: column 'answer' holds null"):
        read(path, tokenizer)


def test_two_columns_of_a_parquet_file_with_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    columns = [pa.array(["q"]), pa.array(["47"]), pa.array(["48"])]
    pq.write_table(pa.Table.from_arrays(columns, ["messages", "answer", "answer"]), path)
    with pytest.raises(DataError, match=r"train\.parquet: 2 columns have the name 'answer'"):
        next(read_rows(str(path)))


@pytest.mark.parametrize("kind", [datasets.Audio(), datasets.Video(), datasets.Pdf()])
def test_media_in_a_parquet_file_are_bytes_and_need_no_library(tmp_path: Path, kind: Any) -> None:
    path, media = tmp_path / "train.parquet", {"bytes": b"media", "path": None}
    features = datasets.Features({"answer": datasets.Value("string"), "media": [kind]})
    place = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({"answer": ["47"], "media": pa.array([[media]], pa.list_(place))})
    described = json.dumps({"info": {"features": features.to_dict()}})
    pq.write_table(table.replace_schema_metadata({"huggingface": described}), path)
    (row,) = read_rows(str(path))
    assert row.values == {"answer": "47", "media": [media]}


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", b"PAR1" * 20])
def test_a_file_that_is_not_parquet_is_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, content: bytes
) -> None:
    path = tmp_path / "train.parquet"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train\.parquet"):
        read(path, tokenizer)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"messages": "a", "answer": }', "not JSON: Expecting value at character 29"),
        ('{"messages": "a"', "not JSON: Expecting ',' delimiter"),
        ("[1, 2]", "a list; needed a JSON object"),
        ("47", "a int; needed a JSON object"),
        ('{"messages": "a", "answer": NaN}', "NaN is not a JSON number"),
        ('{"messages": "a", "answer": 1, "answer": 2}', "an object has the key 'answer' 2 times"),
        ('{"messages": 5, "answer": "1"}', "column 'messages' holds 5; needed text or a list"),
        ('{"messages": [], "answer": "1"}', "column 'messages' holds []; needed"),
        ('{"messages": "  ", "answer": "1"}', 'message 1: content is "  "; needed text'),
        ('{"messages": ["a"], "answer": "1"}', 'message 1 is "a"; needed an object'),
        ('{"messages": [{"role": "user"}], "answer": "1"}', "message 1 has keys ['role']"),
        (
            '{"messages": [{"role": "user", "content": 5}], "answer": "1"}',
            "message 1: content is 5; needed text",
        ),
        (
            '{"messages": [{"role": "user", "content": "a", "tool": 1}], "answer": "1"}',
            "message 1 has keys ['content', 'role', 'tool']; needed ['content', 'role']",
        ),
        (
            '{"messages": [{"role": "assistant", "content": "a"}], "answer": "1"}',
            "ends with an answer of the assistant",
        ),
        ('{"messages": "a", "answer": ""}', "column 'answer' holds \"\"; needed an answer"),
        ('{"messages": "a", "answer": null}', "column 'answer' holds null; needed an answer"),
        ('{"messages": "a", "answer": true}', "column 'answer' holds true; needed an answer"),
        ('{"messages": "a", "answer": ["1"]}', "column 'answer' holds [\"1\"]; needed an answer"),
        ('{"messages": "\\ud800", "answer": "1"}', "half of a surrogate pair"),
        ('{"messages": "a", "answer": "\\ud800"}', "half of a surrogate pair"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line_with_what_is_wrong(
    load: Loader, line: str, complaint: str
) -> None:
    with pytest.raises(DataError) as caught:
        load.text(f"{json.dumps(ROW)}\n\n{line}\n{json.dumps(ROW)}\n")
    assert str(caught.value).startswith(f"{load.path}:3: ")
    assert complaint in str(caught.value)


def test_bytes_that_are_not_utf_8_are_named_by_line_and_position(load: Loader) -> None:
    line = json.dumps(ROW).encode()
    with pytest.raises(DataError, match=r"train\.jsonl:2: byte 15 of the line is not UTF-8"):
        load.content(line + b'\n{"messages": "\xff", "answer": "1"}\n')


def test_a_long_bad_value_is_cut_to_60_characters(load: Loader) -> None:
    with pytest.raises(DataError) as caught:
        load.rows(ROW | {"answer": ["x" * 10_000]})
    assert len(str(caught.value)) < len(str(load.path)) + 160


def test_a_missing_column_names_the_columns_found_and_the_nearest(load: Loader) -> None:
    with pytest.raises(DataError) as caught:
        load.rows({"question": "a", "answer": "1"}, prompt_column="questions")
    assert str(caught.value) == (
        f"{load.path}:1: no column megatron_training.prompt_column='questions'; "
        "found: question, answer; did you mean 'question'?"
    )


def test_a_missing_answer_column_names_its_own_field(load: Loader) -> None:
    with pytest.raises(DataError, match=r"no column megatron_training\.answer_column='label'"):
        load.rows(ROW, answer_column="label")


def test_a_system_message_in_the_row_does_not_silently_meet_a_second_one(load: Loader) -> None:
    row = ROW | {"messages": [{"role": "system", "content": "Add."}, QUESTION]}
    assert load.rows(row).prompts[0].text.startswith("<|im_start|>system\nAdd.<|im_end|>\n")
    with pytest.raises(DataError, match=r"as megatron_training\.system_prompt is set"):
        load.rows(row, system_prompt="Add.")


@pytest.mark.parametrize("text", ["", "\n \n", "\ufeff"])
def test_a_file_without_rows_is_refused(load: Loader, text: str) -> None:
    with pytest.raises(DataError, match=r"train\.jsonl: no rows"):
        load.text(text)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("train.jsonl", "no such file"),
        ("train.parquet", "no such file"),
        ("train.txt", r"suffix '\.txt'; needed \.jsonl or \.json or \.parquet or \.csv"),
        ("train", r"suffix ''; needed \.jsonl or "),
        ("folder.jsonl", r"folder .*folder\.jsonl has no \.jsonl or .* file"),
    ],
)
def test_a_path_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, name: str, complaint: str
) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match=complaint):
        read(tmp_path / name, tokenizer)


LONG_ROW = ROW | {"messages": "1" * 60}  # 8 tokens of the template, and 60 letters


def test_a_prompt_over_the_limit_ends_the_load_with_line_length_and_limit(load: Loader) -> None:
    with pytest.raises(DataError) as caught:
        load.rows(ROW, LONG_ROW, LONG_ROW)
    message = str(caught.value)
    assert message.startswith(f"{load.path}:2: prompt of 68 tokens is longer than ")
    assert "rl_config.max_prompt_length=64; so are 2 of 3 prompts" in message


def test_a_prompt_exactly_at_the_limit_is_kept(load: Loader) -> None:
    assert len(load.rows(LONG_ROW, max_prompt_length=68).prompts) == 1


def test_dropped_prompts_are_counted_and_logged_once_and_the_others_keep_their_numbers(
    load: Loader, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        loaded = load.rows(ROW, LONG_ROW, ROW, LONG_ROW, overlong_prompt_policy="drop")
    assert loaded.dropped == 2
    assert [prompt.uid for prompt in loaded.prompts] == [0, 2]
    (record,) = caplog.records
    assert "dropped 2 of 4 prompts" in record.message
    assert "rl_config.max_prompt_length=64" in record.message


def test_nothing_left_after_dropping_is_refused(load: Loader) -> None:
    with pytest.raises(DataError, match="all 1 prompts are longer"):
        load.rows(LONG_ROW, overlong_prompt_policy="drop")


def test_a_refusal_by_the_chat_template_is_named_by_line(
    load: Loader, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(DataError, match=r"train\.jsonl:1: .*roles must alternate"):
        load.rows(ROW)
