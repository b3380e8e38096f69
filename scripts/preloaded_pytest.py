"""Runs of pytest as forks of one process that has imported the slow libraries, but not mindrl.

`PreloadedPytest` starts this file as a process. A run takes over the sources of a tree as they are
then, as if a new interpreter had started there, without the ten seconds that torch, transformers,
vLLM, Megatron-core and Ray take to import.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, TextIO

LIBRARIES = (
    "torch",
    "transformers",
    "ray",
    "vllm.entrypoints.llm",
    "megatron.core.models.gpt",
    "hydra",
    "pandas",
    "pyarrow.parquet",
    "hypothesis",
    "pytest",
)


class Done(NamedTuple):
    """A finished run of pytest."""

    code: int
    output: str


class PreloadedPytest:
    """The process, and the runs that are forked from it, one at a time."""

    def __init__(self, libraries: Sequence[str] = LIBRARIES) -> None:
        """Start the process; it imports the libraries while the caller goes on."""
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, *libraries],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, arguments: Sequence[str], tree: Path, environment: Mapping[str, str]) -> Done:
        """Run pytest in a folder, with these variables beside those of the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as output:
            order = {
                "arguments": [*arguments],
                "tree": str(tree),
                "environment": {**environment},
                "output": output.name,
            }
            print(json.dumps(order), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            return Done(code, output.read())

    def close(self) -> None:
        """End the process and a run that goes on."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _serve(libraries: Sequence[str], orders: TextIO, answers: TextIO) -> None:
    for name in libraries:
        importlib.import_module(name)
    for line in orders:
        order = json.loads(line)
        if (child := os.fork()) == 0:
            _run(**order)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


def _run(arguments: list[str], tree: str, environment: dict[str, str], output: str) -> NoReturn:
    """Become a run of pytest in this process."""
    with Path(os.devnull).open() as nothing, Path(output).open("w") as log:
        for file, descriptor in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(file.fileno(), descriptor)
    os.environ.update(environment)
    os.chdir(tree)
    sys.path[0] = tree
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in environment
    for name in [each for each in sys.modules if each.partition(".")[0] == "mindrl"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    code = 1
    try:
        import pytest  # noqa: PLC0415

        code = int(pytest.main(arguments))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    # What a library prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _serve(sys.argv[1:], sys.stdin, answers)
