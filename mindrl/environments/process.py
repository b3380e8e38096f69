"""The processes of environments: one that has imported the user's code, and its forks.

A fork has one conversation, its own session and limits; its output is dropped. Random numbers of a
fork are seeded, so the same seed and the same actions bring an environment to the same state.
"""

import os
import random
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from socket import send_fds, socket, socketpair
from typing import Any, Self

import psutil

from mindrl.config.own_functions import named_object
from mindrl.environments.contract import Environment, TextGame, environment_of
from mindrl.environments.messages import Action, Frames
from mindrl.environments.row_tools import DEFAULT, SomeTools, environment_name, tool_names
from mindrl.environments.turn import CodeTurn, begin_turn, sandbox_of
from mindrl.errors import ConfigError

_KEY = "environment_config"
_CODE_TOOLS = "mindrl.environments.code"
_CODE_SHARE = 0.8
"""Share of the time for a turn in which code may run."""
_REASON_LETTERS = 500
_now = time.monotonic
"""The clock of the machine, which the run reads too; bound before user code is imported."""
PID = struct.Struct(">I")
"""A process id, sent with a socket."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    """Which code the processes run, and their limits."""

    environment: str | None
    """Name of a class; None for tools alone."""
    environments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further classes by the name that a row gives: `environment` and `arguments` of each."""
    tools: tuple[str, ...] = ()
    """Names of functions."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the class."""
    memory_bytes: int = 1 << 30
    """Most private memory that each process may write to, besides that of the imports."""
    sandbox: str = "auto"
    """Which sandbox runs code of the policy."""
    call_seconds: float = 30.0
    """Longest time for the answer to a turn."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore it."""
        return cls(**{**values, "tools": tuple(values["tools"])})

    def maker(self) -> Callable[[Mapping[str, Any]], Environment]:
        """Import the user's code; return the function that creates the environment of a row.

        Raises:
            ConfigError: It cannot be imported, or it imports code tools and no sandbox works.
        """
        kinds: dict[str, Any] = {DEFAULT: None}
        if self.environment is not None:
            kinds[DEFAULT] = named_object(f"{_KEY}.environment", self.environment)
        for name, each in self.environments.items():
            kinds[name] = named_object(f"{_KEY}.environments", each["environment"])
        functions: list[Any] = [named_object(f"{_KEY}.tools", each) for each in self.tools]
        if _CODE_TOOLS in sys.modules:
            sandbox_of(self.sandbox)

        def make(row: Mapping[str, Any]) -> Environment:
            name = environment_name(row, kinds)
            arguments = self.environments[name]["arguments"] if name else self.arguments
            made = environment_of(kinds[name], functions, arguments or {})
            names = None if isinstance(made, TextGame) else tool_names(row)
            return made if names is None else SomeTools(made, names)

        return make


def serve(descriptor: int, socket_descriptor: int) -> None:
    """Fork a process for each request of the run, until the connection ends.

    Receives an `EnvironmentSpec` first. Over the second socket it sends the process id of each fork
    and the socket of its conversation.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket(fileno=descriptor) as connection, socket(fileno=socket_descriptor) as passing:
        frames = Frames(connection)
        spec = EnvironmentSpec.of_json(frames.receive())
        try:
            make = spec.maker()
        except ConfigError as error:
            frames.send({"refusal": str(error)})
            return
        except BaseException as error:  # noqa: BLE001
            frames.send({"error": _reason(error)})
            return
        frames.send({"ready": True})
        alive: set[int] = set()
        while (order := frames.receive()) is not None:
            _reap(alive)
            if "kill" in order:
                _kill(order["kill"], alive)
                continue
            ours, theirs = socketpair()
            if not (pid := os.fork()):
                _run(theirs, (connection, passing, ours), make, spec)
            alive.add(pid)
            theirs.close()
            with ours:
                send_fds(passing, [PID.pack(pid)], [ours.fileno()])


def _kill(pid: int, alive: set[int]) -> None:
    """Kill a process and those that it has started, unless it was reaped."""
    if pid in alive:
        _end(pid)
        alive.discard(pid)


def _end(pid: int) -> None:
    """Kill a process that is not reaped, and those that it has started, even if it has ended."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        # It may not have made its group yet.
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _reap(alive: set[int]) -> None:
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, ended)) is not None:
            # Only then: until it is reaped, no other group has its number.
            _end(found.si_pid)
            alive.discard(found.si_pid)


def _run(
    connection: socket,
    others: tuple[socket, ...],
    make: Callable[[Mapping[str, Any]], Environment],
    spec: EnvironmentSpec,
) -> None:
    """Serve one conversation, then end this process."""
    try:
        for each in others:
            each.close()
        _isolate(spec.memory_bytes)
        _converse(Frames(connection), make, spec)
    finally:
        os._exit(0)


def _isolate(memory_bytes: int) -> None:
    os.setsid()
    # Not the address space: WebAssembly and some garbage collectors reserve far more than they use.
    imported = psutil.Process().memory_info().data
    resource.setrlimit(resource.RLIMIT_DATA, (imported + memory_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def _converse(
    frames: Frames, make: Callable[[Mapping[str, Any]], Environment], spec: EnvironmentSpec
) -> None:
    environment: Environment | None = None
    begin_turn(CodeTurn(sandbox=spec.sandbox))
    while (order := frames.receive()) is not None:
        try:
            if environment is None:
                _seed(order["seed"])
                environment = make(order["row"])
                frames.send(environment.reset(order["row"]).to_json())
            else:
                ends = _now() + _CODE_SHARE * spec.call_seconds
                begin_turn(CodeTurn(sandbox=spec.sandbox, ends=ends))
                answer = environment.step(Action.of_json(order)).to_json()
                # Of one width, so that equal answers have equal sizes.
                frames.send(answer | {"at": f"{_now():020.6f}"})
        except BaseException as error:  # noqa: BLE001
            frames.send({"error": _reason(error)})


def _seed(seed: int) -> None:
    """Seed the generators that user code shares."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % (1 << 32))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_REASON_LETTERS]
