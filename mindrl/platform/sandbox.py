"""A sandbox for one Python program that a model wrote: found by trial, and run with limits.

The program sees `/usr` and the Python installation, read-only, and an empty `/tmp`. It has no
network, no privileges and no other processes. All that it has started ends with the sandbox.

Linux does not limit the number of processes of its root user. So root gives the program a user id
of its own, after building the sandbox; or before, if only other users may build one.
"""

import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Literal

_User = Literal["own", "set last", "set first"]

HOW_TO_ALLOW = (
    "install bubblewrap; on Ubuntu 24.04 run `sysctl -w "
    "kernel.apparmor_restrict_unprivileged_userns=0` as root; in Docker add `--security-opt "
    "seccomp=unconfined --security-opt apparmor=unconfined`"
)

_PROGRAMS = {"bubblewrap": "bwrap", "unshare": "unshare"}
_VIEW = Path(__file__).with_name("sandbox_view.sh")
_SCRATCH = "/tmp"  # noqa: S108 - inside the sandbox
_VARIABLES = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": _SCRATCH,
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    # Otherwise glibc reserves 64 MiB of address space for most threads.
    "MALLOC_ARENA_MAX": "1",
}
_DEVICES = ("null", "zero", "urandom")
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64")
"""Links into /usr on most systems."""
_FIRST_USER = 0x70000000
"""Lowest of the user ids that systemd leaves unused; a process id is added."""
_ALL_IDS = ["0", "0", "4294967295"]
"""Map of user ids outside user namespaces, where root is exempt from the limit of processes."""
_READY = b"ready\n"
_START = 'printf "ready\\n"; export LD_LIBRARY_PATH="$1"; shift; exec "$@"'
_START_SECONDS = 10.0
_KILL_SECONDS = 5.0
_READ_BYTES = 1 << 16
_TRIAL = """\
import os
for folder in ("/", "/old", "/proc"):
    print(*os.listdir(folder) if os.path.isdir(folder) else ())
"""
_SHOWN = {*_SYSTEM, "usr", "python", "dev", "tmp", "proc", "old"}
"""Folders in the root of a sandbox; the last two, where they exist, are empty."""
_LIMIT_SIGNALS = (128 + 9, 128 + 24)
"""Exit codes after SIGKILL and SIGXCPU, which end a program at its limit of processor time."""


class SandboxError(Exception):
    """A sandbox did not start."""


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """Limits of a program in a sandbox."""

    seconds: float = 10.0
    """Time of the program, and processor time of each of its processes."""
    memory_bytes: int = 256 << 20
    """Address space of each process."""
    processes: int = 16
    """Processes and threads, including up to three of the sandbox."""
    scratch_bytes: int = 16 << 20
    """Files in `/tmp` together, and each file anywhere."""
    output_bytes: int = 64 << 10
    """Most bytes of each of the two streams; more end the program."""


@dataclass(frozen=True, kw_only=True)
class ProgramEnd:
    """What a program has printed, and how it ended."""

    output: bytes
    errors: bytes
    code: int
    """Exit code, as a shell reports it."""
    limit: Literal["time", "output"] | None
    """Limit that ended it, if one did."""


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """A way to run programs in a sandbox."""

    program: str
    """Path of bwrap or unshare."""
    user: _User
    """Whether the program has a user id of its own, and whether it is set before or after the
    sandbox is built."""

    def run(self, code: str, limits: SandboxLimits) -> ProgramEnd:
        """Run Python code in a new interpreter.

        Raises:
            SandboxError: The sandbox did not start.
        """
        with open(os.memfd_create("program"), "w+b") as source:  # noqa: PTH123 - a descriptor
            source.write(code.encode(errors="replace"))
            source.seek(0)
            with subprocess.Popen(
                self._command(limits),
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_VARIABLES,
            ) as process:
                return _Watch(process, limits).end()

    def _command(self, limits: SandboxLimits) -> list[str]:
        """Return the command line of an interpreter that reads its program from stdin."""
        prefix = Path(sys.base_prefix).resolve()
        is_shown = prefix.is_relative_to("/usr")
        bound, inside = ("", prefix) if is_shown else (str(prefix), Path("/python"))
        has_users = self.user != "set last"
        if Path(self.program).name == _PROGRAMS["bubblewrap"]:
            sandbox = _bubblewrap(bound, limits.scratch_bytes)
            sandbox += ["--unshare-user"] if has_users else []
        else:
            sandbox = ["--user", "--map-root-user"] if has_users else []
            sandbox += ["--net", "--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child"]
            view = _VIEW.read_text(encoding="utf-8")
            sandbox += ["sh", "-c", view, "sh", str(limits.scratch_bytes), bound]
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        new = [f"--reuid={_new_user()}", f"--regid={_new_user()}", "--clear-groups"]
        return [
            *("setpriv", "--pdeathsig=KILL", *(new if self.user == "set first" else ())),
            *(self.program, *sandbox),
            *("setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"),
            *(new if self.user == "set last" else ()),
            *("prlimit", f"--as={limits.memory_bytes}", f"--cpu={ceil(limits.seconds)}"),
            *(f"--nproc={limits.processes}", f"--fsize={limits.scratch_bytes}"),
            *("--nofile=64", "--core=0"),
            # Not isolated (-I), which would ignore PYTHONHASHSEED.
            *("sh", "-c", _START, "sh", f"{inside}/lib", f"{inside}/bin/{version}"),
            *("-s", "-P", "-B", "-"),
        ]


@dataclass(frozen=True, kw_only=True)
class SandboxSearch:
    """The sandbox that works on this machine, or why none does."""

    name: str = ""
    """Name in a configuration; empty without one."""
    sandbox: Sandbox | None = None
    failures: tuple[str, ...] = ()
    """Sandboxes that were tried and do not work, with reasons."""


@cache
def find_sandbox(choice: str) -> SandboxSearch:
    """Run a program in each sandbox of a choice; return the first that works.

    Args:
        choice: `bubblewrap`, `unshare`, or `auto` for the first of both that works.
    """
    failures = []
    for name, program in _PROGRAMS.items():
        if choice not in {name, "auto"}:
            continue
        if (path := shutil.which(program)) is None:
            failures.append(f"{name}: {program} is not installed")
            continue
        errors = []
        for sandbox in _candidates(path):
            if not (error := _trial_error(sandbox)):
                return SandboxSearch(name=name, sandbox=sandbox, failures=tuple(failures))
            errors.append(error)
        failures.append(f"{name}: {errors[0]}")
    return SandboxSearch(failures=tuple(failures))


def _candidates(path: str) -> Iterator[Sandbox]:
    users: tuple[_User, ...] = ("own",)
    if os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == _ALL_IDS:
        users = ("set last", "set first")
    for user in users:
        yield Sandbox(program=path, user=user)


def _trial_error(sandbox: Sandbox) -> str:
    """Return why a sandbox does not work; empty if it does."""
    try:
        end = sandbox.run(_TRIAL, SandboxLimits())
    except (SandboxError, OSError) as error:
        return str(error)
    if end.code != 0:
        return _last_line(end.errors) or f"Python ended with exit code {end.code}"
    shown = {*end.output.decode().split()} - _SHOWN
    return f"it shows {', '.join(sorted(shown))} of the host" if shown else ""


def _new_user() -> int:
    return _FIRST_USER + os.getpid()


def _bubblewrap(prefix: str, scratch_bytes: int) -> list[str]:
    """Return the options of bwrap; `prefix` is shown as /python unless it is empty."""
    options = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    options += ["--die-with-parent", "--new-session"]
    options += ["--ro-bind", "/usr", "/usr", "--dir", "/dev"]
    options += ["--ro-bind", prefix, "/python"] if prefix else []
    for folder in (Path("/", name) for name in _SYSTEM):
        if folder.is_symlink():
            options += ["--symlink", f"usr/{folder.name}", str(folder)]
        elif folder.is_dir():
            options += ["--ro-bind", str(folder), str(folder)]
    for name in _DEVICES:
        options += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    options += ["--perms", "1777", "--size", str(scratch_bytes), "--tmpfs", _SCRATCH]
    return [*options, "--remount-ro", "/", "--chdir", _SCRATCH]


class _Watch:
    """Reads what a program prints, and ends it at its limits."""

    def __init__(self, process: subprocess.Popen[bytes], limits: SandboxLimits) -> None:
        self._process, self._limits = process, limits
        self._output, self._errors = bytearray(), bytearray()
        self._selector = selectors.DefaultSelector()
        for stream, read in ((process.stdout, self._output), (process.stderr, self._errors)):
            assert stream is not None, "it is a pipe"
            self._selector.register(stream, selectors.EVENT_READ, read)
        self._ends = time.monotonic() + _START_SECONDS
        self._is_ready = False

    def end(self) -> ProgramEnd:
        """Wait for the end of the program, and of all that it has started.

        Raises:
            SandboxError: The sandbox did not start.
        """
        with self._selector:
            limit = self._read()
            self._process.kill()
            ends = time.monotonic() + _KILL_SECONDS
            while self._selector.get_map() and (left := ends - time.monotonic()) > 0:
                self._read_once(left)
        if not self._is_ready:
            raise SandboxError(_last_line(bytes(self._errors)) or "it did not start")
        code, most = self._process.wait(), self._limits.output_bytes
        if limit is None and code in _LIMIT_SIGNALS:
            limit = "time"
        output, errors = bytes(self._output[:most]), bytes(self._errors[:most])
        return ProgramEnd(output=output, errors=errors, code=code, limit=limit)

    def _read(self) -> Literal["time", "output"] | None:
        """Read until the program ends; return the limit that it reached before, if any."""
        while self._selector.get_map():
            if (left := self._ends - time.monotonic()) <= 0:
                return "time"
            self._read_once(left)
            if not self._is_ready and self._output.startswith(_READY):
                self._is_ready = True
                self._ends = time.monotonic() + self._limits.seconds
                del self._output[: len(_READY)]
            if max(len(self._output), len(self._errors)) > self._limits.output_bytes:
                return "output"
        try:  # it may have closed its streams and live on
            self._process.wait(max(0.0, self._ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            return "time"
        return None

    def _read_once(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            more = os.read(key.fd, _READ_BYTES)
            key.data.extend(more)
            if not more:
                self._selector.unregister(key.fileobj)


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").split("\n")
    return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
