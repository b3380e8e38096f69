"""The tokenizer of the tiny model."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="session")
def scripts() -> Iterator[Path]:
    """Let tests import the scripts; return their folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield SCRIPTS


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    from mindrl.tiny.chat_model import build_tokenizer

    return build_tokenizer()


@pytest.fixture(scope="session")
def tokenizer_folder(
    tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder
