"""The quickstart's data and models, made once."""

import subprocess
import sys
from pathlib import Path

import pytest
from program import CHECKOUT, DATA, MODEL


@pytest.fixture(scope="session")
def tiny_data() -> Path:
    """Make the quickstart's data, or find them up to date."""
    _run("scripts/make_tiny_data.py", "--output", str(DATA), "--seed", "1")
    return DATA


@pytest.fixture(scope="session")
def tiny_model(tiny_data: Path) -> Path:
    """Make the quickstart's model, or find it up to date."""
    command = ["scripts/make_tiny_model.py", "--output", str(MODEL), "--data", str(tiny_data)]
    _run(*command, "--seed", "1")
    return MODEL


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


def _run(*command: str) -> None:
    subprocess.run([sys.executable, *command], cwd=CHECKOUT, check=True)
