"""Run a program as a new user in this process; return its exit code and its lines."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mindrl.programs.entry import start


def lines(path: Path, *rows: object) -> Path:
    """Write a file of JSON lines, and the folder of the file."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


class NewUser:
    """Starts `mindrl train-grpo` in a new folder."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.patch, self.capture = folder, patch, capture
        patch.chdir(folder)
        # Which would have Hydra hide where an error of ours came from.
        patch.setenv("HYDRA_FULL_ERROR", "1")
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
            patch.setenv(name, "")

    def is_told(
        self,
        arguments: Sequence[str],
        *,
        code: int = 2,
        leaves: bool = False,
        program: str = "train-grpo",
    ) -> list[str]:
        """Start the program; return the lines on stderr. Only `leaves` lets the folder change."""
        before = sorted(self.folder.rglob("*"))
        self.patch.setattr(sys, "argv", ["train_grpo.py", *arguments])
        assert start(program) == code
        assert leaves or sorted(self.folder.rglob("*")) == before
        lines = self.capture.readouterr().err.splitlines()
        assert not any("Traceback" in line for line in lines)
        return [line.replace(f"{self.folder}/", "") for line in lines]
