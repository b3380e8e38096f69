"""The tokenizer of the tiny model, made by the script's own function."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from transformers import PreTrainedTokenizerFast

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="session")
def scripts() -> Iterator[Path]:
    """Let tests import the scripts; the folder of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield SCRIPTS


@pytest.fixture(scope="session")
def tiny_chat_model(scripts: Path) -> ModuleType:
    assert scripts.is_dir()
    import tiny_chat_model

    return sys.modules[tiny_chat_model.__name__]


@pytest.fixture(scope="session")
def tokenizer(tiny_chat_model: ModuleType) -> PreTrainedTokenizerFast:
    return tiny_chat_model.build_tokenizer()


@pytest.fixture(scope="session")
def tokenizer_folder(
    tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder
