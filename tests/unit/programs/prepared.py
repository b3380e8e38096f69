"""A process that imports programs once, and forks a process for each call.

Started by `user_programs` as `python prepared.py DESCRIPTOR`; the variable `ABSENT` names packages
that cannot be imported.
"""

import os
import runpy
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

from zygote import serve

from mindrl.platform.environment import replace_environment

PROGRAMS = ("check", "convert", "explain", "import_config", "placement", "propose", "train")


def prepare() -> None:
    """Import what the programs need, without what is not there."""
    absent = os.environ["ABSENT"].split()
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment] # import then raises ImportError
    for name in PROGRAMS:
        import_module(f"mindrl.programs.{name}")
    if "torch" not in absent:
        import_module("mindrl.checkpoint.conversion")


def run(
    arguments: Sequence[str], folder: str, environment: Mapping[str, str], outputs: Sequence[Path]
) -> int:
    """Run a program in a folder, its two outputs into files; returns its exit code."""
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    replace_environment(environment)
    os.chdir(folder)
    program = Path(folder, arguments[0])
    sys.argv, sys.path[0] = [*arguments], str(program.parent)
    try:
        runpy.run_path(str(program), run_name="__main__")
    except SystemExit as ended:
        return _exit_code(ended.code)
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _exit_code(said: object) -> int:
    if isinstance(said, str):
        print(said, file=sys.stderr)
    return said if isinstance(said, int) else int(said is not None)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), prepare, lambda *_: None)
