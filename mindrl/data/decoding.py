"""Decode many responses: for byte-level vocabularies several times as quickly as the tokenizer.

A step may have 20 million response tokens, which the driver decodes for the rewards. In a
byte-level vocabulary each token stands for bytes, so a response is the text of its joined bytes.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import chain

from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

_PROBE_TOKENS = 64
"""Tokens of each sequence on which both ways are compared."""


class ResponseDecoder:
    """Returns what `tokenizer.decode` returns without special tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Compare both ways on all tokens, in random order; any difference disables ours."""
        self.tokenizer = tokenizer
        self.bytes_of = _token_bytes(tokenizer)
        ids = [*self.bytes_of]
        random.Random(1).shuffle(ids)
        places = range(0, len(ids), _PROBE_TOKENS)
        probes = [ids[place : place + _PROBE_TOKENS] for place in places]
        if any(self(probe) != self._slowly(probe) for probe in probes):
            self.bytes_of = {}

    def __call__(self, token_ids: Sequence[int]) -> str:
        """Return the text of a response."""
        try:
            return b"".join(map(self.bytes_of.__getitem__, token_ids)).decode(errors="replace")
        except KeyError:
            return self._slowly(token_ids)

    def _slowly(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode([*token_ids], skip_special_tokens=True)
        return text


def _token_bytes(tokenizer: PreTrainedTokenizerBase) -> Mapping[int, bytes]:
    """Return the bytes of each token, none for special ones; empty if tokens are not bytes."""
    # Such a tokenizer removes spaces before punctuation after it has joined the tokens.
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.clean_up_tokenization_spaces:
        return {}
    backend = tokenizer.backend_tokenizer
    if not isinstance(backend.decoder, ByteLevel):
        return {}
    byte_of = _byte_of_character()
    special = {each for each, token in tokenizer.added_tokens_decoder.items() if token.special}

    def content(token: str) -> bytes:
        found = [byte_of.get(character) for character in token]
        known = [each for each in found if each is not None]
        # Added tokens are written as they are.
        return bytes(known) if len(known) == len(found) else token.encode()

    return {
        number: b"" if number in special else content(token)
        for token, number in backend.get_vocab(with_added_tokens=True).items()
    }


def _byte_of_character() -> Mapping[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for, as in GPT-2.

    Printable characters of Latin-1 stand for themselves, those from 256 on for the other bytes.
    """
    printable = [*chain(range(33, 127), range(161, 173), range(174, 256))]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }
