"""Loading a tokenizer from a model folder."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from mindrl.data.tokenizer import load_tokenizer
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
    with pytest.raises(ModelError, match="cannot be read"):
        load_tokenizer(str(folder))


def test_a_folder_without_chat_template_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match=r"no chat template; needed chat_template\.jinja"):
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
