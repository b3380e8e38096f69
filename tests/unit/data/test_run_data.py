"""Messages of a dry run and of a starting run about rows, tokenizer and chat template."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked_runs import MakeConfig, model_folder
from transformers import PreTrainedTokenizerFast

from mindrl.config.run import RunConfig
from mindrl.data.run_data import data_lines, read_data
from mindrl.errors import ConfigError
from mindrl.programs.train import explain

Asked = Callable[..., RunConfig]
DROPS = {"rl_config.overlong_prompt_policy": "drop"}
OVERLAP = "data_config.test_overlap_policy"


def rows(path: Path, *questions: str) -> str:
    """Write a data file: each question becomes a prompt of 8 tokens more than it has letters."""
    lines = [json.dumps({"messages": question, "answer": "2"}) for question in questions]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return str(path)


@pytest.fixture
def asked(tokenizer_folder: Path, run_config: MakeConfig, tmp_path: Path) -> Asked:
    """Configure a run on two rows of 3 and 5 letters; keys change it."""
    model = model_folder(tmp_path / "model")
    (model / "generation_config.json").write_text('{"eos_token_id": 258}', "utf-8")
    data = rows(tmp_path / "train.jsonl", "1+1", "11+11")

    def make(changes: dict[str, Any] | None = None) -> RunConfig:
        given = {
            "megatron_training.data_path": data,
            "megatron_training.tokenizer_name_or_path": str(tokenizer_folder),
            "rl_config.max_prompt_length": 13,
        }
        return run_config(model, given | (changes or {}))

    return make


def test_a_dry_run_counts_rows_tokens_and_test_rows_that_are_trained_on(
    asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = rows(tmp_path / "test.jsonl", "11+11", "2+2", "1+1", "123+4567")
    tested = {"megatron_training.test_data_path": test, OVERLAP: "allow"}
    explain(asked(tested | DROPS), elsewhere=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-5:] == [
        f"{tmp_path}/train.jsonl: 2 rows, prompts of up to 13 tokens",
        f"{tmp_path}/test.jsonl: 4 rows, prompts of up to 13 tokens, 1 longer ones dropped",
        "2 of the 3 test prompts are also training prompts, which raises the accuracy",
        "a response ends with <|im_end|> (258)",
        "the configuration is valid",
    ]


def test_all_that_ends_a_response_is_named_with_its_id(
    asked: Asked, tokenizer: PreTrainedTokenizerFast, tokenizer_folder: Path, tmp_path: Path
) -> None:
    """As in a base model, whose tokenizer ends a text and whose template ends a turn."""
    base = Path(shutil.copytree(tokenizer_folder, tmp_path / "base"))
    settings = json.loads((base / "tokenizer_config.json").read_text("utf-8"))
    settings["eos_token"] = "<|endoftext|>"
    (base / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    data = read_data(asked({"megatron_training.tokenizer_name_or_path": str(base)}))
    assert [*data_lines(data)][-1] == "a response ends with <|endoftext|> (256) or <|im_end|> (258)"
    assert data.stop_token_ids == (tokenizer.pad_token_id, tokenizer.eos_token_id)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"megatron_training.prompt_column": "question"},
            "train.jsonl:1: no column megatron_training.prompt_column='question'; found: messages",
        ),
        ({"megatron_training.answer_column": "answers"}, "did you mean 'answer'"),
        ({"rl_config.max_prompt_length": 12}, "train.jsonl:2: prompt of 13 tokens is longer than"),
        ({"rl_config.max_prompt_length": 10} | DROPS, "all 2 prompts are longer"),
    ],
    ids=["wrong prompt column", "wrong answer column", "too long", "all too long"],
)
def test_a_dry_run_refuses_rows_that_the_run_would_refuse(
    asked: Asked, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(asked(changes), elsewhere=True)
    assert words in str(caught.value)


def test_a_dry_run_refuses_a_file_without_rows(asked: Asked, tmp_path: Path) -> None:
    empty = rows(tmp_path / "empty.jsonl")
    with pytest.raises(ConfigError, match=r"empty\.jsonl: no rows; needed at least one"):
        explain(asked({"megatron_training.data_path": empty}), elsewhere=True)


def test_a_dry_run_refuses_a_tokenizer_without_chat_template(
    asked: Asked, tokenizer_folder: Path, tmp_path: Path
) -> None:
    bare = Path(shutil.copytree(tokenizer_folder, tmp_path / "bare"))
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match=r"bare has no chat template \(chat_template\.jinja"):
        explain(asked({"megatron_training.tokenizer_name_or_path": str(bare)}), elsewhere=True)


def test_where_the_tokenizer_is_elsewhere_a_dry_run_says_that_rows_were_not_read(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    config = asked({"megatron_training.tokenizer_name_or_path": None})
    explain(config, elsewhere=True)
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"rows and rewards not checked: {config.actor_config.load} has no tokenizer",
        "the configuration is valid, except for missing files",
    ]
    with pytest.raises(ConfigError, match="the folder has no tokenizer"):
        explain(config)


def test_data_that_a_step_takes_more_than_once_gets_a_word(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = {"megatron_training.global_batch_size": 4, "rl_config.mini_batch_size": 4}
    explain(asked(batch), elsewhere=True)
    assert capsys.readouterr().err == (
        "note: megatron_training.global_batch_size=4 exceeds the 2 prompts of the data: a step "
        "uses some more than once\n"
    )
    two = {"megatron_training.global_batch_size": 2, "rl_config.mini_batch_size": 2}
    explain(asked(two), elsewhere=True)
    assert capsys.readouterr().err == ""
