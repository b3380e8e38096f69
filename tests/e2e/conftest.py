"""The quickstart's model, made once."""

import subprocess
import sys
from pathlib import Path

import pytest
from program import CHECKOUT, DATA, MODEL


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """Make the quickstart's data and model, or find them up to date."""
    for command in (
        ["scripts/make_tiny_data.py", "--output", str(DATA), "--seed", "1"],
        [
            *("scripts/make_tiny_model.py", "--output", str(MODEL)),
            *("--data", str(DATA), "--seed", "1"),
        ],
    ):
        subprocess.run([sys.executable, *command], cwd=CHECKOUT, check=True)
    return MODEL
