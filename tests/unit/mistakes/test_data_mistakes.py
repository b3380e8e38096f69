"""Natural mistakes with data and model folders, and the exact words that answer them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from new_user import NewUser, lines
from nightly import half_unless_night

ROW = {"messages": "1+1=?", "answer": "2"}
OTHER = {"messages": "2+2=?", "answer": "4"}
DATA, TEST = "megatron_training.data_path", "megatron_training.test_data_path"
ANSWER, HUB = "megatron_training.answer_column", "megatron_training.allow_download"
Given = Callable[[Path], list[str]]


@pytest.fixture
def user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny: Path
) -> NewUser:
    """Has a model, a training file and a test file that are right."""
    shutil.copytree(tiny / "model", tmp_path / "model")
    lines(tmp_path / "data/train.jsonl", ROW)
    lines(tmp_path / "data/test.jsonl", OTHER)
    return NewUser(tmp_path, monkeypatch, capsys)


def rows(*made: object, name: str = "data/mine.jsonl", **keys: str) -> Given:
    """Train on these rows."""

    def given(folder: Path) -> list[str]:
        lines(folder / name, *made)
        return [f"{DATA}={name}", *(f"megatron_training.{key}={keys[key]}" for key in keys)]

    return given


def text(content: str, name: str) -> Given:
    """Train on a file with this text."""

    def given(folder: Path) -> list[str]:
        (folder / name).write_text(content)
        return [f"{DATA}={name}"]

    return given


def keys(*given: str) -> Given:
    return lambda _: [*given]


def adapter(folder: Path) -> list[str]:
    (folder / "lora").mkdir()
    (folder / "lora/adapter_config.json").write_text('{"base_model_name_or_path": "acme/base"}')
    return ["actor_config.load=lora"]


def old_weights(folder: Path) -> list[str]:
    (folder / "model/model.safetensors").rename(folder / "model/pytorch_model.bin")
    return []


def base(folder: Path) -> list[str]:
    (folder / "model/chat_template.jinja").unlink()
    return []


MISTAKES: dict[str, tuple[Given, str]] = {
    "a column of another name": (
        rows({"question": "1+1=?", "answer": "2"}),
        (
            "data/mine.jsonl:1: no column megatron_training.prompt_column='messages'; found: "
            "question, "
            "answer"
        ),
    ),
    "an answer inside another column": (
        rows({"messages": "1+1=?", "solution": {"value": "2"}}, answer_column="value"),
        (
            f"data/mine.jsonl:1: no column {ANSWER}='value'; found: messages, solution.value; did "
            f"you "
            "mean 'solution.value'?"
        ),
    ),
    "an answer that is a list": (
        rows(ROW, {**ROW, "answer": ["2"]}),
        (
            "data/mine.jsonl:2: column 'answer' holds [\"2\"]; needed an answer: text, not empty, "
            "or a "
            "number"
        ),
    ),
    "an answer that is missing in a row": (
        rows(ROW, {"messages": "1+1=?"}),
        f"data/mine.jsonl:2: no column {ANSWER}='answer'; found: messages",
    ),
    "a conversation with its answer": (
        rows({**ROW, "messages": [{"role": "assistant", "content": "2"}]}),
        (
            "data/mine.jsonl:1: column 'messages' ends with an answer of the assistant; needed a "
            "question"
        ),
    ),
    "messages with other keys": (
        rows({**ROW, "messages": [{"from": "human", "value": "1+1=?"}]}),
        (
            "data/mine.jsonl:1: column 'messages', message 1 has keys ['from', 'value']; needed "
            "['content', 'role']"
        ),
    ),
    "messages in a CSV file": (
        text("messages,answer\n\"[{'role': 'user', 'content': '1+1'}]\",2\n", "data/mine.csv"),
        (
            "data/mine.csv:2: column 'messages' holds messages written as text; needed a list of "
            "them, "
            "in .jsonl, .json or .parquet"
        ),
    ),
    "semicolons in a CSV file": (
        text("messages;answer\n1+1=?;2\n", "data/mine.csv"),
        (
            "data/mine.csv:2: no column megatron_training.prompt_column='messages'; found: "
            "messages;answer; did you mean 'messages;answer'?"
        ),
    ),
    "an object over several lines": (
        text('{\n "messages": "1+1=?"\n}', "data/mine.jsonl"),
        (
            "data/mine.jsonl:1: not JSON: write one object per line; a list of objects "
            "needs the suffix .json"
        ),
    ),
    "a file without rows": (
        text("", "data/mine.jsonl"),
        "data file data/mine.jsonl: no rows; needed at least one",
    ),
    "a prompt beyond the limit": (
        rows({**ROW, "messages": "1" * 40}),
        (
            "data/mine.jsonl:1: prompt of 48 tokens is longer than "
            "rl_config.max_prompt_length=16; so are 1 of 1 prompts, up to 48 tokens. "
            "Raise the limit, or set rl_config.overlong_prompt_policy=drop"
        ),
    ),
    "tests that are trained on": (
        rows(OTHER, ROW),
        (
            "data/test.jsonl: 1 of the 1 test prompts are also training prompts, the "
            "first in row 0 (from 0). Set data_config.test_overlap_policy=drop to remove "
            "them from training, or allow to keep them"
        ),
    ),
    "a folder with both": (
        keys(f"{DATA}=data"),
        (
            f"{DATA}: folder data has test.jsonl beside train.jsonl; list its files, or write "
            "data/train*"
        ),
    ),
    "a format that is not read": (
        text("1+1=?", "data/train.txt"),
        f"{DATA}=data/train.txt must be a folder or a .jsonl, .json, .parquet or .csv file",
    ),
    "a role of other data sets": (
        rows({"messages": [{"role": "human", "content": "1+1=?"}], "answer": "2"}),
        (
            "data/mine.jsonl:1, message 1: the role 'human' must be one of system, developer, "
            "user, assistant, tool; did you mean 'user'?"
        ),
    ),
    "no answers for a reward that compares": (
        keys(f"{ANSWER}=null"),
        (
            "rl_config.verifier_function: math_verify needs a reference answer, and "
            f"{ANSWER}=null reads none"
        ),
    ),
    "two ways to hold rows out": (
        keys("data_config.held_out_fraction=0.1"),
        f"data_config.held_out_fraction=0.1 and {TEST} both define the held-out data; remove one",
    ),
    "a base model without a template": (
        base,
        (
            "tokenizer folder model has no chat template (chat_template.jinja or "
            "chat_template in tokenizer_config.json). Set "
            "megatron_training.chat_template to a template file, or to plain for a base "
            "model, which reads prompts unchanged"
        ),
    ),
    "a token beyond the vocabulary": (
        keys("generate_config.sampling_config.stop_token_ids=[151645]"),
        (
            "generate_config.sampling_config.stop_token_ids: 151645 is not a token of "
            "model, which has 264"
        ),
    ),
}
MISSING: dict[str, tuple[Given, str]] = {
    "a file that is misspelt": (
        keys(f"{DATA}=data/training.jsonl"),
        f"{DATA}=data/training.jsonl: no such file; did you mean 'train.jsonl'?",
    ),
    "a pattern that finds nothing": (
        keys(f"{DATA}=data/train-*.parquet"),
        (
            f"{DATA}=data/train-*.parquet: the pattern matches no .jsonl or .json or "
            ".parquet or .csv file"
        ),
    ),
    "a home folder": (
        keys(f"{DATA}='~/train.jsonl'"),
        f"{DATA}=~/train.jsonl: no such file; ~ is not expanded: write your home folder in full",
    ),
    "a model of the hub": (
        keys("actor_config.load=acme/base"),
        (
            "actor_config.load: model folder acme/base does not exist, and the hub cache "
            f"of this machine has no model of this name; download it with {HUB}=true or "
            "`hf download acme/base`"
        ),
    ),
    "data of the hub": (
        keys(f"{DATA}=acme/sums"),
        (
            f"{DATA}=acme/sums: no such file, and the hub cache of this machine has no "
            f"dataset of this name; download it with {HUB}=true or `hf download "
            "--repo-type dataset acme/sums`"
        ),
    ),
    "an adapter": (
        adapter,
        (
            "actor_config.load: model folder lora contains an adapter of acme/base, not "
            "a model: continue training it with actor_config.load=acme/base "
            "actor_config.lora.load=lora, or merge it with peft, "
            "AutoPeftModelForCausalLM.from_pretrained(folder).merge_and_unload()"
            ".save_pretrained(new_folder), add the base model's tokenizer, and use the new folder"
        ),
    ),
    "weights of the old format": (
        old_weights,
        (
            "actor_config.load: model folder model has no .safetensors file; it has "
            "pytorch_model.bin: "
            "save_pretrained of transformers writes safetensors"
        ),
    ),
}
"""Mistakes whose files may be elsewhere: a dry run says that they are not here, a run ends."""


CHOSEN = half_unless_night(MISTAKES)


@pytest.mark.parametrize(("given", "words"), CHOSEN.values(), ids=CHOSEN)
def test_a_mistake_is_answered_in_words(given: Given, words: str, user: NewUser) -> None:
    right = ["actor_config.load=model", f"{DATA}=data/train.jsonl", f"{TEST}=data/test.jsonl"]
    assert user.is_told([*right, *given(user.folder), "--dry-run"]) == [f"error: {words}"]


@pytest.mark.parametrize(("given", "words"), MISSING.values(), ids=MISSING)
def test_what_is_not_there_is_answered_in_words_by_a_run(
    given: Given, words: str, user: NewUser
) -> None:
    right = ["actor_config.load=model", f"{DATA}=data/train.jsonl", f"{TEST}=data/test.jsonl"]
    told = user.is_told([*right, *given(user.folder), "hydra.run.dir=."], leaves=True)
    assert f"error: {words}" in told
