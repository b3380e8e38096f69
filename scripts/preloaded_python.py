"""A Python whose programs are forks of one process that has imported the slow libraries.

    python scripts/preloaded_python.py serve SOCKET [LIBRARY ...] [--tests FOLDER ...]
    python scripts/preloaded_python.py SOCKET -c CODE [ARGUMENT ...]

The first is that process; the second runs a program in it, as `python -c` does: in the working
folder, with the variables, the files, the niceness and the exit code of the second. So it starts
without the ten seconds that torch, transformers, vLLM, Megatron-core and Ray take to import.

Without `--tests`, each program imports the sources of mindrl as they are when it starts. With it,
the process also imports the tests of the folders and what they import of mindrl, once for all
workers of pytest; the sources must then stay as they are.
"""

import argparse
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

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
_MOST_BYTES = 1 << 18
_START_SECONDS = 60.0


class PreloadedPython:
    """The process; its programs end with it."""

    def __init__(self, libraries: Sequence[str] = LIBRARIES, tests: Sequence[str] = ()) -> None:
        """Start the process; it imports libraries and tests while the caller continues."""
        self._folder = TemporaryDirectory()
        path = f"{self._folder.name}/socket"
        order = ["serve", path, *libraries, "--tests", *tests]
        serve = [sys.executable, "-W", "ignore", __file__, *order]
        self._process = subprocess.Popen(serve, start_new_session=True)
        self.command = [sys.executable, __file__, path]
        """Takes the arguments of `python -c CODE`."""
        while not Path(path).exists():
            assert self._process.poll() is None, "it opens the socket before it imports"

    def close(self) -> None:
        """End the process and its programs."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()


def _serve(path: str, libraries: Sequence[str], folders: Sequence[str]) -> NoReturn:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        gc.disable()
        _import(libraries, folders)
        gc.enable()
        # Collections in forks skip what all share, and copy none of its pages.
        gc.collect()
        gc.freeze()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            connection, _ = listener.accept()
            message, files, *_ = socket.recv_fds(connection, _MOST_BYTES, 3)
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _run(connection, files, **json.loads(message))
            for file in files:
                os.close(file)
            connection.close()


def _import(libraries: Sequence[str], folders: Sequence[str]) -> None:
    """Import libraries, and the tests of folders as pytest does."""
    for name in libraries:
        importlib.import_module(name)
    # Python starts with a patch of the installed mindrl; programs import mindrl themselves.
    for name in [each for each in sys.modules if each.partition(".")[0] == "mindrl"]:
        del sys.modules[name]
    if folders:
        # A test that cannot be imported is an error of each worker.
        options = ["--collect-only", "-qq", "-p", "no:xdist", "-p", "no:cacheprovider"]
        importlib.import_module("pytest").main([*options, *folders])


def _run(
    connection: socket.socket,
    files: list[int],
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    niceness: int,
) -> NoReturn:
    """Run a program in a fork, and answer with its exit code."""
    if (child := os.fork()) != 0:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.send(str(code).encode())
        os._exit(0)
    connection.close()
    os.nice(niceness - os.nice(0))
    for descriptor, file in enumerate(files):
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = ""
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in environment
    importlib.invalidate_caches()
    code, *rest = arguments
    sys.argv = ["-c", *rest]
    program, status = os.memfd_create("program"), 1
    os.write(program, code.encode())
    try:
        runpy.run_path(f"/proc/self/fd/{program}", run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _ask(path: str, arguments: Sequence[str]) -> int:
    """Run a program in the process with this socket; return its exit code."""
    start = arguments.index("-c") + 1
    asked = {
        "arguments": arguments[start:],
        "folder": str(Path.cwd()),
        "environment": {**os.environ},
        "niceness": os.nice(0),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        _connect(connection, path)
        socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
        return int(connection.recv(16) or 1) & 0xFF


def _connect(connection: socket.socket, path: str) -> None:
    """Connect; the process may open its socket a moment later."""
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            return connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        parser = argparse.ArgumentParser()
        parser.add_argument("socket")
        parser.add_argument("libraries", nargs="*", default=LIBRARIES)
        parser.add_argument("--tests", nargs="*", default=())
        options = parser.parse_args(sys.argv[2:])
        _serve(options.socket, options.libraries, options.tests)
    sys.exit(_ask(sys.argv[1], sys.argv[2:]))
