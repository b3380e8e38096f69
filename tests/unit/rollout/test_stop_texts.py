"""Texts that end a response: found by vLLM's own output side, and kept with their tokens."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

SCRIPT = Path(__file__).with_name("stopped_texts.py")


CASES: list[tuple[list[str], str, str | None]] = [
    # Letters are tokens: the text is completed by the third of them.
    (["\nQ:"], "4\nQ: 2+3", "4\nQ:"),
    (["z", "2"], "1+2=3", "1+2"),
    # A special token is found as text, though rewards do not see it.
    (["<|im_end|>"], "47<|im_end|>more", "47<|im_end|>"),
    (["nowhere"], "1+2=3", None),
]
"""Texts that end a response, what would be drawn, and what is kept of it; None is all."""


@pytest.mark.nightly
def test_a_response_ends_behind_the_token_that_completes_a_text(
    tokenizer: PreTrainedTokenizerFast, tokenizer_folder: Path
) -> None:
    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    asked = json.dumps([(stop, ids(text)) for stop, text, _ in CASES])
    command = [sys.executable, str(SCRIPT), str(tokenizer_folder), asked]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    taken: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    for (_, text, kept), found in zip(CASES, taken, strict=True):
        assert found["token_ids"] == ids(kept or text)
        # What was stopped is whole and not cut, and the engine is told to draw no more of it.
        stopped = kept is not None
        assert found["finished"] == [stopped]
        assert found["whole"] == ([0] if stopped else [])
        assert found["aborted"] == stopped
