"""The quickstart's mixture of experts, made once."""

from pathlib import Path

import pytest
from program import CHECKOUT


@pytest.fixture(scope="session")
def untaught_moe_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the quickstart's mixture of experts as it is before its warm start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(CHECKOUT / "scripts")
        from tiny_chat_model import build_model, build_tokenizer
    folder = tmp_path_factory.mktemp("moe") / "model"
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    build_model(tokenizer, seed=1, family="qwen3_moe").save_pretrained(folder)
    return folder
