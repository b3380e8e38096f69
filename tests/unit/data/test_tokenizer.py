"""Loading a tokenizer from a model folder."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from mindrl.data.tokenizer import load_tokenizer, stop_token_ids
from mindrl.errors import ModelError


@pytest.fixture
def folder(tokenizer_folder: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(tokenizer_folder, tmp_path / "model"))


def test_a_loaded_tokenizer_encodes_as_the_saved_one(
    folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    text = "12+35=? \\boxed{47}, user é"
    loaded = load_tokenizer(str(folder))
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.eos_token == "<|im_end|>"


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(ModelError, match=r"/no/such/model: no such folder"):
        load_tokenizer("/no/such/model")


def test_a_folder_without_vocabulary_is_refused_though_the_family_would_load_empty(
    folder: Path,
) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(ModelError, match=r"no vocabulary; needed one of tokenizer\.json"):
        load_tokenizer(str(folder))


@pytest.mark.parametrize("content", ['{"a":', '{"model": {"type": "BPE"}}', "[]"])
def test_a_broken_vocabulary_is_a_model_error(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match="cannot load"):
        load_tokenizer(str(folder))


def test_a_folder_without_chat_template_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match=r"no chat template \(chat_template\.jinja"):
        load_tokenizer(str(folder))


def test_code_of_the_folder_does_not_run_unless_it_is_trusted(folder: Path) -> None:
    trace = folder / "it-ran"
    (folder / "own.py").write_text(f"import pathlib; pathlib.Path({str(trace)!r}).touch()")
    (folder / "config.json").write_text('{"model_type": "own"}')
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="trust_remote_code"):
        load_tokenizer(str(folder))
    assert not trace.exists()


END_OF_TEXT, END_OF_TURN = 256, 258


def as_base_model(folder: Path, template: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer as base models have it: it ends a text, the template ends a turn."""
    loaded = load_tokenizer(str(folder))
    loaded.eos_token = "<|endoftext|>"
    if template is not None:
        loaded.chat_template = template
    return loaded


def test_a_chat_models_answer_ends_with_its_one_end_of_turn(folder: Path) -> None:
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {END_OF_TURN}}}')
    assert stop_token_ids(load_tokenizer(str(folder)), str(folder)) == (END_OF_TURN,)


def test_a_base_models_answer_ends_with_its_end_of_text_and_the_templates_end_of_turn(
    folder: Path,
) -> None:
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {END_OF_TEXT}}}')
    assert stop_token_ids(as_base_model(folder), str(folder)) == (END_OF_TEXT, END_OF_TURN)


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{{ messages[1]['content'] }} <|im_end|>\n", {END_OF_TURN}),
        ("{{ messages[1]['content'] }}\n\nuser: <|im_end|>", set()),
        ("{{ messages[1]['content'] }}", set()),
        ("{{ messages[0]['content'] }}<|im_end|>", set()),
        ("{{ raise_exception('no answers') }}", set()),
    ],
    ids=["behind a blank", "behind words", "nothing", "no answer", "refuses"],
)
def test_only_a_special_token_right_behind_the_answer_ends_a_turn(
    template: str, found: set[int], folder: Path
) -> None:
    stops = stop_token_ids(as_base_model(folder, template), str(folder))
    assert set(stops) == found | {END_OF_TEXT}


@pytest.mark.parametrize(
    ("file", "content", "found"),
    [
        ("generation_config.json", '{"eos_token_id": [7, 9]}', (7, 9, END_OF_TURN)),
        ("generation_config.json", '{"eos_token_id": null}', (END_OF_TURN,)),
        ("config.json", '{"eos_token_id": 7}', (7, END_OF_TURN)),
        (
            "config.json",
            '{"model_type": "qwen3_5", "text_config": {"eos_token_id": 7}}',
            (7, END_OF_TURN),
        ),
    ],
)
def test_what_the_model_folder_names_ends_a_response_too(
    file: str, content: str, found: tuple[int, ...], folder: Path
) -> None:
    tokenizer = load_tokenizer(str(folder))
    (folder / file).write_text(content)
    assert stop_token_ids(tokenizer, str(folder)) == found


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"eos_token_id": "</s>"}', "eos_token_id is '</s>'; needed a number or a list of num"),
        ('{"eos_token_id": [true]}', r"eos_token_id is \[True\]; needed a number"),
        ("{", "cannot read"),
        ("[]", "cannot read"),
    ],
)
def test_a_broken_generation_config_is_a_model_error(
    content: str, words: str, folder: Path
) -> None:
    tokenizer = load_tokenizer(str(folder))
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(ModelError, match=words):
        stop_token_ids(tokenizer, str(folder))


def test_a_model_that_nothing_stops_is_refused(folder: Path) -> None:
    tokenizer = as_base_model(folder, "{{ messages[1]['content'] }}")
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match="has no token that ends a response; add eos_token to"):
        stop_token_ids(tokenizer, str(folder))
