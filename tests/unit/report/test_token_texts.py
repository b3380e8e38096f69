"""Texts of tokens: from the tokenizer that the run reads, or from its export."""

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from mindrl.report.token_texts import token_texts


def tokenizer_in(folder: Path, *words: str) -> Path:
    folder.mkdir()
    model = WordLevel({word: at for at, word in enumerate(words)}, unk_token=words[0])
    Tokenizer(model).save(str(folder / "tokenizer.json"))
    return folder


def test_before_the_first_export_the_tokenizer_is_that_of_the_configuration(
    tmp_path: Path,
) -> None:
    base, other = tokenizer_in(tmp_path / "base", "a", "b"), tokenizer_in(tmp_path / "other", "c")
    run = tmp_path / "run"
    run.mkdir()
    assert token_texts(run, {}) is None
    config = {"actor_config": {"load": str(base)}, "megatron_training": {}}
    texts = token_texts(run, config)
    assert texts is not None
    assert [text.strip() for text in texts([1, 0])] == ["b", "a"]
    named = config | {"megatron_training": {"tokenizer_name_or_path": str(other)}}
    texts = token_texts(run, named)
    assert texts is not None
    assert texts([0]) == ["c"]
    tokenizer_in(run / "model", "d")
    texts = token_texts(run, named)
    assert texts is not None
    assert texts([0]) == ["d"]
