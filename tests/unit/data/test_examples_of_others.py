"""Rows as the example data of verl and TRL have them are read with at most a column renamed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from checked_runs import model_folder

from mindrl.config.run import RunConfig
from mindrl.data.run_data import read_data

MakeConfig = Callable[..., RunConfig]
COLUMN, ANSWER = "megatron_training.prompt_column", "megatron_training.answer_column"
PROMPT = {COLUMN: "prompt"}
PLAIN = {"megatron_training.chat_template": "plain"}


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def of_verl(source: str, question: str, truth: str, **more: Any) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": user(question),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train", "index": 0, **more},
    }


EXAMPLES: dict[str, Any] = {
    "verl, gsm8k": (
        "train.parquet",
        of_verl("openai/gsm8k", "2 + 3? End with ####.", "5", raw="2 + 3?"),
        {},
        ("2 + 3? End with ####.", "5", "openai/gsm8k"),
    ),
    "verl, MATH": (
        "train.parquet",
        of_verl("DigitalLearningGmbH/MATH-lighteval", "Half of 1? Box it.", "\\frac{1}{2}"),
        {},
        ("Half of 1? Box it.", "\\frac{1}{2}", "DigitalLearningGmbH/MATH-lighteval"),
    ),
    "verl, DAPO's 17k": (
        "dapo.jsonl",
        of_verl("math_dapo", "9 - 2? Answer: $Answer", "7") | {"extra_info": {"index": "a-b-c"}},
        {},
        ("9 - 2? Answer: $Answer", "7", "math_dapo"),
    ),
    "TRL, tldr": (
        "train.parquet",
        {"prompt": "POST: long text\n\nTL;DR:", "completion": " short"},
        {**PROMPT, ANSWER: "completion", **PLAIN},
        ("POST: long text\n\nTL;DR:", " short", ""),
    ),
    "TRL, ultrafeedback-prompt": (
        "train.jsonl",
        {"prompt": user("Write a poem.")},
        {**PROMPT, ANSWER: None},
        ("Write a poem.", "", ""),
    ),
    "TRL, DeepMath": (
        "train.parquet",
        {"prompt": user("A limit?"), "solution": "$0$"},
        {**PROMPT, ANSWER: "solution"},
        ("A limit?", "$0$", ""),
    ),
}
"""File, row and keys; then the prompt, the answer and the source that are read."""


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_of_theirs_is_read(
    example: Any, tmp_path: Path, tokenizer_folder: Path, run_config: MakeConfig
) -> None:
    name, row, keys, found = example
    file, model = tmp_path / name, model_folder(tmp_path / "model")
    (model / "generation_config.json").write_text('{"eos_token_id": 258}', "utf-8")
    if file.suffix == ".parquet":
        datasets.Dataset.from_list([row]).to_parquet(file)
    else:
        file.write_text(json.dumps(row))
    given = {
        "megatron_training.data_path": str(file),
        "megatron_training.tokenizer_name_or_path": str(tokenizer_folder),
        "rl_config.max_prompt_length": 64,
        "megatron_training.seq_length": 80,
        "generate_config.max_model_len": 80,
    }
    [prompt] = read_data(run_config(model, given | keys)).train.prompts
    question, answer, source = found
    assert (prompt.answer, prompt.source) == (answer, source)
    if keys.get("megatron_training.chat_template") == "plain":
        assert prompt.text == question
    else:
        expected = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        assert prompt.text == expected
