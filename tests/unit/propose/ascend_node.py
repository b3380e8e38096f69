"""A machine that looks like an Ascend node to the launch scripts, but has no NPU.

What an Ascend node has and this machine lacks is put in their way: device files, npu-smi, CANN, and
packages that may be found but not imported. `ray` and `python` are recorders, so that what the
scripts start, pass on and end can be read.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from program import is_running, piped

ROOT = Path(__file__).parents[3]
SCRIPT = "scripts/train_grpo_qwen25_7b.sh"
ANY_RUN = "scripts/train_ascend.sh"

FAKES = ROOT / "tests" / "unit" / "ascend_fakes"


@dataclass(kw_only=True)
class Node:
    """A machine that looks like an Ascend node to the script."""

    folder: Path
    environment: dict[str, str]
    checkout: Path = ROOT
    script: str = SCRIPT
    pids: list[int] = field(default_factory=list)

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        command = ["bash", self.script, *arguments]
        return piped(command, self.environment | settings, self.checkout)

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **settings)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def calls(self, program: str) -> list[dict]:
        file = self.folder / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        found = [call for call in map(json.loads, lines) if call["program"] == program]
        self.pids += [pid for call in found for pid in call.get("pids", [])]
        return found

    def option(self, call: dict, name: str) -> str:
        return call["arguments"][call["arguments"].index(name) + 1]

    def wait_for_call(self, program: str, number: int = 1) -> dict:
        deadline = time.monotonic() + 60
        while len(calls := self.calls(program)) < number:
            assert time.monotonic() < deadline, f"{program} was not called {number} time(s)"
            time.sleep(0.05)
        return calls[number - 1]


def write_program(path: Path, command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)


def ready_node(tmp_path: Path) -> Iterator[Node]:
    """Make a node with 8 NPUs, CANN and all packages, whose `ray` and `python` are recorders."""
    for name in ("bin", "dev", "home", "packages", "Ascend/ascend-toolkit"):
        (tmp_path / name).mkdir(parents=True)
    for name in (*range(8), "_manager"):
        (tmp_path / "dev" / f"davinci{name}").touch()
    toolkit = tmp_path / "Ascend" / "ascend-toolkit"
    # Like the real one: chatty, with failing commands and unset variables.
    lines = [f"export ASCEND_HOME_PATH={toolkit}", "echo loading", "false", "echo $NEVER_SET"]
    (toolkit / "set_env.sh").write_text("\n".join(lines))
    for name in (
        "torch_npu",
        "vllm_ascend",
        "triton",
        "torchvision",
        "mindspeed",
        "ray",
        "megatron/core",
    ):
        package = tmp_path / "packages" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('imported on the wrong machine')")
    for name in ("ray", "python"):
        write_program(tmp_path / "bin" / name, f"{sys.executable} {FAKES / name}.py")
    write_program(tmp_path / "bin" / "npu-smi", "true")
    environment = {
        "PATH": f"{tmp_path / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(tmp_path / "packages"),
        "DEVICE_DIR": str(tmp_path / "dev"),
        "ASCEND_INSTALL_DIR": str(tmp_path / "Ascend"),
        "CALLS": str(tmp_path / "calls.jsonl"),
    }
    made = Node(folder=tmp_path, environment=environment)
    yield made
    # After a failure the script keeps Ray's logs; a failed test may leave processes too.
    for call in made.calls("ray"):
        if "--temp-dir" in call["arguments"]:
            shutil.rmtree(made.option(call, "--temp-dir"), ignore_errors=True)
    for pid in filter(is_running, made.pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
