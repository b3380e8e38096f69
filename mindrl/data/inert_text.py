"""Token ids of text from outside, without control tokens."""

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase


class InertText:
    """Encodes text without any added token of a tokenizer, special or not.

    A tool could otherwise write the end of a turn, or the header of a user's message.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Set the tokenizer."""
        self.tokenizer = tokenizer
        added = [each.content for each in tokenizer.added_tokens_decoder.values() if each.content]
        # The longest first: one may begin with another.
        words = sorted(filter(lambda word: len(word) > 1, added), key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, words))) if words else None

    def token_ids(self, text: str) -> list[int]:
        """Return token ids that decode to the text; halves of surrogate pairs become `?`."""
        plain = text.encode("utf-8", "replace").decode()
        parts = self._parts(plain)
        encoded: Sequence[list[int]] = self.tokenizer(
            parts, add_special_tokens=False, split_special_tokens=True
        )["input_ids"]
        return [token for part in encoded for token in part]

    def is_needed(self, text: str) -> bool:
        """Return whether a text has an added token, so that it cannot be encoded as it is."""
        return self._added is not None and self._added.search(text) is not None

    def _parts(self, text: str) -> list[str]:
        """Cut a text in the middle of each word that is an added token."""
        cuts = [0]
        if self._added is not None:
            cuts += [(found.start() + found.end()) // 2 for found in self._added.finditer(text)]
        return [text[start:end] for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True)]
