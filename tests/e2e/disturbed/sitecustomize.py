"""Put on the path of a program, this lets something happen to its processes at a named call.

Python imports a module of this name at each start. The environment names a folder with
`disturbances.json`: a list of what is to happen, in this order, each once. A file beside it is the
witness that it has happened, and with what: its number, the process, the call.
"""

import ctypes
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = os.environ.get("MINDRL_TEST_DISTURBED")


def who() -> str:
    """Return what this process is: the driver, or the worker of a rank."""
    if "train_" in sys.argv[0]:
        return "driver"
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        return "?"
    # Of the process: where a role has ranks of its own, torch counts those while it is asked.
    return f"worker {os.environ['RANK']}"


class Disturbance:
    """One entry of the list, in a process that may be the one that makes the call."""

    def __init__(self, folder: Path, number: int, entry: dict[str, Any]) -> None:
        self.folder, self.number, self.entry, self.calls = folder, number, entry, 0
        self.was_its_turn = self.is_its_turn()

    def witness(self, number: int) -> Path:
        return self.folder / f"{number:03}.json"

    def is_its_turn(self) -> bool:
        """Say whether the one before it has happened."""
        return not self.number or self.witness(self.number - 1).exists()

    def meet(self) -> None:
        """Happen, where this is the call of the process that was named, and it is its turn."""
        if self.witness(self.number).exists() or who() != self.entry["caller"]:
            return
        if not (self.was_its_turn if self.entry["anew"] else self.is_its_turn()):
            return
        self.calls += 1
        if self.calls < self.entry["call"]:
            return
        victim = self.entry["victim"]
        pid = int((self.folder / f"{victim}.pid").read_text())
        told = {**self.entry, "pid": pid, "time": time.time()}
        temporary = self.folder / f".{self.number}.tmp"
        temporary.write_text(json.dumps(told))
        temporary.rename(self.witness(self.number))
        happen(self.entry["kind"], pid)


def happen(kind: str, pid: int) -> None:
    """Do it: a signal goes to whoever is named, all else happens here."""
    if kind.startswith("SIG"):
        os.kill(pid, getattr(signal, kind))
        # Whoever is to end is not to get further.
        time.sleep(0.2 if pid == os.getpid() else 0)
    elif kind == "exit":
        os._exit(3)
    elif kind == "segfault":
        ctypes.string_at(0)
    elif kind == "exception":
        raise RuntimeError("a planted error")
    elif kind == "spin":
        while True:
            pass
    else:
        raise AssertionError(kind)


def note_process() -> None:
    """Say which process this is, once it knows."""
    name = who()
    if name != "?" and FOLDER:
        path = Path(FOLDER) / f"{name}.pid"
        if not path.exists() or path.read_text() != str(os.getpid()):
            path.write_text(str(os.getpid()))


def wrapped(function: Callable[..., Any], disturbances: Sequence[Disturbance]) -> Any:
    """Let things happen before a function is called."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        note_process()
        for each in disturbances:
            each.meet()
        return function(*arguments, **named)

    return call


def stale(close: Callable[..., Any], planted: Disturbance) -> Any:
    """Leave a tensor of the engine as the first load of the weights filled it.

    `close` is that of a sink of weights; the kind names the tensor, as `stale:NAME`.
    """
    name, first = planted.entry["kind"].removeprefix("stale:"), []

    @functools.wraps(close)
    def call(sink: Any, tensor: str) -> Any:
        if tensor == name:
            memory = sink.filling[tensor]
            if first:
                memory.copy_(first[0])
                planted.witness(planted.number).write_text(json.dumps(planted.entry))
            else:
                first.append(memory.clone())
        return close(sink, tensor)

    return call


def wrap(module: ModuleType, targets: dict[str, list[Disturbance]]) -> None:
    """Wrap functions and methods of a module that has just been imported."""
    for name, disturbances in targets.items():
        *path, last = name.split(".")
        owner = functools.reduce(getattr, path, module)
        method, calls = getattr(owner, last), disturbances
        if disturbances and disturbances[0].entry["kind"].startswith("stale:"):
            (planted,), calls = disturbances, []
            method = stale(method, planted)
        setattr(owner, last, wrapped(method, calls))


class Finder(importlib.abc.MetaPathFinder):
    """Finds the named modules as everybody does, and wraps what they define."""

    def __init__(self, targets: dict[str, dict[str, list[Disturbance]]]) -> None:
        self.targets = targets
        self.busy: set[str] = set()

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.targets or fullname in self.busy:
            return None
        self.busy.add(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            wrap(module, self.targets[fullname])

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install(folder: Path) -> None:
    """Wrap all that is named; each worker says which process it is when it is called."""
    entries = json.loads((folder / "disturbances.json").read_text())
    targets: dict[str, dict[str, list[Disturbance]]] = {
        "mindrl.cluster.worker_process": {"WorkerProcess.call": []},
        "mindrl.launch.attempts": {"Attempts.run": []},
    }
    for number, entry in enumerate(entries):
        module, name = entry["at"].split(":")
        found = targets.setdefault(module, {}).setdefault(name, [])
        found.append(Disturbance(folder, number, entry))
    sys.meta_path.insert(0, Finder(targets))


if FOLDER:
    install(Path(FOLDER))
