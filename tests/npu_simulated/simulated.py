"""Processes with simulated NPUs: the vendors' own packages on the libraries of cann/.

`SimulatedNpus.run("module:function", ..., ranks=2)` calls a function in forked processes, each with
a device of its own and all of them in one process group over HCCL, by the product's own rendezvous.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_workers import ForkedGroup, ForkedWorkers

from mindrl.platform.device import PLATFORMS
from mindrl.preflight.run_shardings import RunPlan

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MINDSPEED = os.environ.get("MINDSPEED")
"""A checkout of the pinned commit; without one `without_mindspeed` is in its place."""


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
    patience_seconds: int | None = None
    """`HCCL_EXEC_TIMEOUT`; None for that of the product."""

    def environment(self, folder: str) -> dict[str, str]:
        """Return the variables that say so; the folder is for messages and device files."""
        for device in range(self.devices):
            Path(folder, f"davinci{device}").touch()
        listed = {} if self.visible is None else {"ASCEND_RT_VISIBLE_DEVICES": self.visible}
        limit = self.patience_seconds
        return {
            **listed,
            **({} if limit is None else {"HCCL_EXEC_TIMEOUT": str(limit)}),
            "SIMULATED_NPU_DEVICES": str(self.devices),
            "SIMULATED_NPU_CAPACITY": str(self.capacity_bytes),
            "SIMULATED_NPU_DELAY_US": str(self.delay_us),
            "SIMULATED_NPU_SEED": str(self.seed),
            "SIMULATED_HCCL_GROUPS": str(self.groups),
            "SIMULATED_HCCL_FOLDER": folder,
            "MINDRL_DEVICE_FOLDER": folder,
        }


class SimulatedNpus:
    """A zygote process that has imported the vendors' packages, and what is forked from it."""

    def __init__(
        self, packages: Mapping[str, str], log: Path, script: Path = HERE / "zygote_npu.py"
    ) -> None:
        """Start the zygote, which finds the vendors' packages; another script may import more."""
        self.log = log
        log.touch()
        worker = PLATFORMS["npu"].worker_environment(workers=2, one_machine=True)
        self.forked = ForkedWorkers(log, script, {**worker, **packages})

    def run(
        self, function: str, *arguments: Any, ranks: int = 1, machine: Machine | None = None
    ) -> list[Any]:
        """Call `module:function` on each of so many ranks; returns what each returned.

        Raises:
            AssertionError: A rank raised, or died; with the end of what all of them printed.
        """
        with self._on(machine or Machine()):
            return self.forked.run(function, *arguments, ranks=ranks)

    @contextmanager
    def workers(self, plan: RunPlan, machine: Machine | None = None) -> Iterator[ForkedGroup]:
        """Build the workers of a run, and end them.

        Raises:
            AssertionError: A rank raised, or died; with the end of what all of them printed.
        """
        with self._on(machine or Machine()):
            group = self.forked.start(plan, kind="npu")
            yield group
            group.stop()

    @contextmanager
    def _on(self, machine: Machine) -> Iterator[None]:
        before = self.log.stat().st_size
        with around(machine) as self.forked.environment:
            try:
                yield
            except (AssertionError, EOFError, ConnectionError) as error:
                printed = self.log.read_bytes()[before:].decode(errors="replace")
                raise AssertionError(f"{error!r}\n{error}\n{printed[-4000:]}") from error

    def stop(self) -> None:
        """End the zygote."""
        self.forked.stop()


Workers = Callable[[str], SimulatedNpus]
"""Returns the simulated NPUs with all that a worker has, by the generation of vllm-ascend."""


def vendors(generation: str = "0.23") -> dict[str, str]:
    """Return the environment in which Python finds the packages, made if they are not there.

    `generation` is that of vllm-ascend.

    Raises:
        UnavailableError: They cannot be had here.
    """
    script = ROOT / "scripts/install_npu_simulated.sh"
    done = subprocess.run(
        ["bash", script, generation],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UnavailableError(done.stderr.strip().splitlines()[-1])
    made = dict(line.split("=", 1) for line in done.stdout.splitlines())
    folders = [str(HERE / "site"), str(HERE), str(HERE.parent / "distributed"), made["PYTHONPATH"]]
    folders += [MINDSPEED or str(HERE / "without_mindspeed"), os.environ.get("PYTHONPATH", "")]
    return {**made, "PYTHONPATH": os.pathsep.join(folders).rstrip(os.pathsep)}


@contextmanager
def around(machine: Machine) -> Iterator[dict[str, str]]:
    """Yield what sets a machine up for processes that find the vendors' packages."""
    # A process that is being killed may still make a file.
    with tempfile.TemporaryDirectory(
        prefix="simulated-npus-", dir="/dev/shm", ignore_cleanup_errors=True
    ) as folder:
        yield machine.environment(folder)
