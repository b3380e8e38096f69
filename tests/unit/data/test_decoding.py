"""Responses decoded by their bytes are the texts of the tokenizer."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from mindrl.data.decoding import ResponseDecoder


def tokenizer_of(*, is_bytes: bool = True) -> PreTrainedTokenizerFast:
    """Return a vocabulary of bytes and words, with special and ordinary added tokens."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces += ["Ġhello", "ä½łå¥½", "ĠðŁĺ", "Ģ", "Ċ"] if is_bytes else ["▁hello"]
    vocabulary = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.decoder = decoders.ByteLevel() if is_bytes else decoders.Metaspace()
    backend.add_special_tokens(["<|end|>", "<|start of text|>"])
    backend.add_tokens([AddedToken(" and, "), AddedToken("é"), AddedToken("你好")])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


BYTES = tokenizer_of()
DECODER = ResponseDecoder(BYTES)


def theirs(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    text: str = tokenizer.decode(token_ids, skip_special_tokens=True)
    return text


@given(st.lists(st.integers(0, len(BYTES) - 1), max_size=40))
def test_any_tokens_are_decoded_as_by_the_tokenizer(token_ids: list[int]) -> None:
    """Also bytes that are no text, and characters that are cut between tokens."""
    assert len(DECODER.bytes_of) == len(BYTES)
    assert DECODER(token_ids) == theirs(BYTES, token_ids)


def test_the_tokenizer_of_a_model_is_decoded_by_its_bytes(tokenizer_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    decoder = ResponseDecoder(tokenizer)
    assert len(decoder.bytes_of) == len(tokenizer)
    token_ids = random.Random(3).choices(range(len(tokenizer)), k=2000)
    assert decoder(token_ids) == theirs(tokenizer, token_ids)


def test_a_token_that_is_not_in_the_vocabulary_is_left_to_the_tokenizer() -> None:
    token_ids = [40, len(BYTES) + 7, 41]
    assert DECODER(token_ids) == theirs(BYTES, token_ids) == theirs(BYTES, [40, 41])


def test_a_vocabulary_of_words_is_left_to_the_tokenizer() -> None:
    tokenizer = tokenizer_of(is_bytes=False)
    decoder = ResponseDecoder(tokenizer)
    assert decoder.bytes_of == {}
    token_ids = [*range(len(tokenizer))]
    assert decoder(token_ids) == theirs(tokenizer, token_ids)


def test_a_tokenizer_that_changes_the_text_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of()
    plain = tokenizer.decode
    monkeypatch.setattr(
        tokenizer, "decode", lambda *given, **more: plain(*given, **more).replace("!", " !")
    )
    decoder = ResponseDecoder(tokenizer)
    assert decoder.bytes_of == {}
    mark = tokenizer.convert_tokens_to_ids("!")
    assert decoder([mark]) == " !"


def test_a_tokenizer_that_cleans_up_spaces_is_left_alone() -> None:
    tokenizer = tokenizer_of()
    tokenizer.clean_up_tokenization_spaces = True
    decoder = ResponseDecoder(tokenizer)
    assert decoder.bytes_of == {}
    token_ids = tokenizer.convert_tokens_to_ids(["Ġhello", "Ġ", "."])
    assert decoder(token_ids) == theirs(tokenizer, token_ids)
