"""Processes over simulated NPUs: the vendors' own packages above the libraries of cann/.

`SimulatedNpus.run("module:function", ..., ranks=2)` calls a function in forked processes, each with
a device of its own and all of them in one process group over HCCL, by the product's own rendezvous.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_workers import ForkedWorkers

from mindrl.platform.device import PLATFORMS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class UnavailableError(Exception):
    """The vendors' packages cannot be had, or the libraries not be built, on this machine."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the processes find; the sources in cann/ say what each variable does."""

    devices: int = 8
    visible: str | None = None
    """`ASCEND_RT_VISIBLE_DEVICES`."""
    capacity_bytes: int = 4 << 30
    """Of each device."""
    delay_us: int = 0
    """What runs on a stream begins up to so many microseconds late."""
    seed: int = 1
    """Of the delays."""
    groups: int = 0
    """Communicators that a process may have at a time; 0 sets no bound."""

    def environment(self) -> dict[str, str]:
        """Return the variables that say so."""
        listed = {} if self.visible is None else {"ASCEND_RT_VISIBLE_DEVICES": self.visible}
        return {
            **listed,
            "SIMULATED_NPU_DEVICES": str(self.devices),
            "SIMULATED_NPU_CAPACITY": str(self.capacity_bytes),
            "SIMULATED_NPU_DELAY_US": str(self.delay_us),
            "SIMULATED_NPU_SEED": str(self.seed),
            "SIMULATED_HCCL_GROUPS": str(self.groups),
        }


class SimulatedNpus:
    """A zygote process that has imported the vendors' packages, and what is forked from it."""

    def __init__(self, log: Path, script: Path = HERE / "zygote_npu.py") -> None:
        """Start the zygote; another script may import more before it serves orders."""
        self.log = log
        log.touch()
        self.forked = ForkedWorkers(log, script, process_environment())

    def run(
        self, function: str, *arguments: Any, ranks: int = 1, machine: Machine | None = None
    ) -> list[Any]:
        """Call `module:function` on each of so many ranks; returns what each returned.

        Raises:
            AssertionError: A rank raised, or died; with the end of what all of them printed.
        """
        before = self.log.stat().st_size
        with tempfile.TemporaryDirectory(prefix="simulated-hccl-", dir="/dev/shm") as messages:
            machine = machine or Machine()
            for device in range(machine.devices):
                Path(messages, f"davinci{device}").touch()
            folders = {"SIMULATED_HCCL_FOLDER": messages, "MINDRL_DEVICE_FOLDER": messages}
            self.forked.environment = machine.environment() | folders
            try:
                return self.forked.run(function, *arguments, ranks=ranks)
            except (AssertionError, EOFError, ConnectionError) as error:
                printed = self.log.read_bytes()[before:].decode(errors="replace")
                raise AssertionError(f"{error!r}\n{error}\n{printed[-4000:]}") from error

    def stop(self) -> None:
        """End the zygote."""
        self.forked.stop()


def process_environment() -> dict[str, str]:
    """Return the environment of a process over the simulated NPU, made if it is not there.

    Raises:
        UnavailableError: It cannot be made here.
    """
    script = ROOT / "scripts/install_npu_simulated.sh"
    done = subprocess.run(
        ["bash", script],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UnavailableError(done.stderr.strip().splitlines()[-1])
    made = dict(line.split("=", 1) for line in done.stdout.splitlines())
    folders = [str(HERE), str(HERE.parent / "distributed"), made["PYTHONPATH"]]
    made["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]).rstrip(":")
    return {**PLATFORMS["npu"].worker_environment(workers=2, one_machine=True), **made}
