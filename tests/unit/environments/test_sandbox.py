"""Programs of a policy in each sandbox that works here: what they cannot do, and how they end."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mindrl.config.environment import EnvironmentConfig
from mindrl.environments.code import python, run_python
from mindrl.environments.host import EnvironmentHost, Key, Limits
from mindrl.environments.messages import Action, EnvironmentAnswer, Failed, Opening, ToolCall
from mindrl.environments.process import EnvironmentSpec
from mindrl.environments.tools import tool_schemas
from mindrl.environments.turn import CodeTurn, begin_turn
from mindrl.errors import ConfigError
from mindrl.platform.sandbox import SandboxLimits, find_sandbox

ROOT = Path(__file__).parents[3]
GAMES = str(Path(__file__).with_name("games.py"))
TOOL = "mindrl.environments.code:python"
KEY = Key("training", 3, 0)
PROCESSES = SandboxLimits().processes
FORKS = """
import os, time
n = 0
try:
    for n in range(200):
        if not os.fork():
            time.sleep(60)
            os._exit(0)
except OSError:
    pass
print(n)
"""


THREADS = """
import threading, time
n = 0
try:
    for n in range(200):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError:
    pass
print(n)
"""


def skip_if_the_system_refuses(*failures: str) -> None:
    """Skip a test for a reason of the system's; another failure is ours."""
    for reason in ("is not installed", "not permitted", "No permissions", "denied"):
        if failures and reason in failures[-1] and "prlimit" not in failures[-1]:
            pytest.skip(failures[-1])


@pytest.fixture(params=["bubblewrap", "unshare"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[str]:
    skip_if_the_system_refuses(*find_sandbox(request.param).failures)
    begin_turn(CodeTurn(sandbox=request.param))
    yield request.param
    begin_turn(CodeTurn())


def attempts(tries: dict[str, str]) -> str:
    """Return a program that prints what each try returns, or its error in small letters."""
    return f"""
import json, os, resource, socket
found = {{}}
for name, text in {tries!r}.items():
    try:
        found[name] = eval(text)
    except Exception as error:
        found[name] = f"no: {{error}}"
print(json.dumps(found, default=str))
"""


def on_the_host(program: str) -> dict[str, str]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.usefixtures("sandbox")
def test_a_program_returns_what_it_prints_and_the_last_lines_of_its_error() -> None:
    assert python("print(6 * 7)") == "42"
    assert python("print('a')\nraise ValueError('b')").split("\n") == [
        "a",
        "Traceback (most recent call last):",
        '  File "<stdin>", line 2, in <module>',
        "ValueError: b",
    ]
    assert python("import sys; sys.exit(3)") == "error: exit code 3"
    assert python("1") == "(no output)"
    assert python("print(input())").endswith("EOFError: EOF when reading a line")
    deep = run_python("def f(n): return f(n - 1) if n else 1 / 0\nf(40)").error
    assert deep.count("\n") == 4
    assert deep.endswith("ZeroDivisionError: division by zero")


@pytest.mark.usefixtures("sandbox")
def test_files_of_the_host_are_neither_read_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("secret")
    monkeypatch.setenv("SECRET", "secret")
    places = [tmp_path, *(Path(each) for each in ("/", "/usr", "/dev", "/etc", "/var/tmp"))]
    new = [place / f"mindrl-{os.getpid()}" for place in places]
    tries = {
        "own": f"open({str(tmp_path / 'secret')!r}).read()",
        "checkout": f"len(os.listdir({str(ROOT)!r}))",
        "variable": "os.environ['SECRET']",
        "processes": "os.listdir('/proc')[0]",
        "old root": "os.listdir('/old')[0]",
        "/root": "len(os.listdir('/root'))",
        "/etc/passwd": "len(open('/etc/passwd').read())",
        "a process": f"os.kill({os.getpid()}, 0)",
    }
    program = attempts(tries)
    found = json.loads(run_python(program).output)
    assert {name: each for name, each in found.items() if not str(each).startswith("no: ")} == {}
    outside = on_the_host(program)
    assert outside["own"] == outside["variable"] == "secret"
    written = {str(path): f"open({str(path)!r}, 'w').write('x')" for path in new}
    found = json.loads(run_python(attempts(written)).output)
    assert {name: each for name, each in found.items() if not str(each).startswith("no: ")} == {}
    # Not only denied to this user.
    assert all("Read-only file system" in found[str(new[place])] for place in (1, 2, 3)), found
    assert [path for path in new if path.exists()] == []


@pytest.mark.usefixtures("sandbox")
def test_the_network_is_not_reached() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0mindrl-{os.getpid()}")
        abstract.listen()
        program = attempts(
            {
                "loopback": f"socket.create_connection({server.getsockname()!r}, 5)",
                "abstract": f"socket.socket(socket.AF_UNIX).connect({abstract.getsockname()!r})",
                "raw": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
            }
        )
        found = json.loads(run_python(program).output)
        outside = on_the_host(program)
    assert all(each.startswith("no: ") for each in found.values()), found
    assert not str(outside["loopback"]).startswith("no: ")
    assert not str(outside["abstract"]).startswith("no: ")


@pytest.mark.usefixtures("sandbox")
def test_the_scratch_folder_is_empty_limited_and_new_for_each_program() -> None:
    assert python("open('x', 'w').write('1'); import os; print(os.getcwd(), os.listdir())") == (
        "/tmp ['x']"
    )
    assert python("import os; print(os.listdir(), os.path.expanduser('~'))") == "[] /tmp"
    half = "f = open(name, 'wb'); f.write(bytes(9 << 20)); f.close()"
    assert "No space left" in python(f"for name in 'ab': {half}")
    assert "File too large" in python("open('a', 'wb').write(bytes(17 << 20))")


@pytest.mark.usefixtures("sandbox")
def test_memory_and_processes_are_limited() -> None:
    assert python("bytearray(1 << 30)").endswith("MemoryError")
    assert 8 <= int(python(FORKS)) < PROCESSES
    # All processes of a program count, so the next one has as many again.
    assert 8 <= int(python(FORKS)) < PROCESSES


@pytest.mark.usefixtures("sandbox")
def test_a_program_has_as_many_threads_as_its_limit_of_processes_allows() -> None:
    # The first process, and up to three of the sandbox, count too.
    assert PROCESSES - 4 <= int(python(THREADS)) < PROCESSES


@pytest.mark.usefixtures("sandbox")
def test_a_program_has_no_privileges() -> None:
    program = attempts(
        {
            "user": "os.setuid(12345)",
            "root": "os.chroot('/tmp')",
            "host name": "socket.sethostname('x')",
            "device": "os.mknod('/tmp/d', 0o60600, os.makedev(8, 0))",
            "priority": "os.setpriority(os.PRIO_PROCESS, 0, -5)",
            "limit": "resource.setrlimit(resource.RLIMIT_NPROC, (99, 99))",
        }
    )
    found = json.loads(run_python(program).output)
    assert all(str(each).startswith("no: ") for each in found.values()), found


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "from signal import *\nfor each in (15, 24): signal(each, SIG_IGN)\nwhile True: pass",
        "import os\nos.close(1)\nos.close(2)\nwhile True: pass",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        "import os\nif os.fork(): os._exit(0)\nos.setsid()\nwhile True: print(end='')",
    ],
    ids=["loop", "signals", "closed streams", "fork bomb", "daemon"],
)
@pytest.mark.usefixtures("sandbox")
def test_a_program_ends_with_all_its_processes(program: str) -> None:
    seen: set[psutil.Process] = set()
    ended = threading.Event()
    before = set(psutil.Process().children(recursive=True))

    def watch() -> None:
        while not ended.wait(0.02):
            seen.update(set(psutil.Process().children(recursive=True)) - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    # The daemon's parent ends by itself, after a start that takes long on a busy machine.
    ends = "os._exit(0)" in program
    result = run_python(program, SandboxLimits(seconds=20 if ends else 0.7))
    ended.set()
    watcher.join()
    assert result.output == ""
    assert result.error == ("" if ends else "error: killed at the time limit")
    assert len(seen) > 1
    _, alive = psutil.wait_procs(seen, timeout=10)
    assert alive == []


@pytest.mark.usefixtures("sandbox")
def test_a_huge_output_is_cut() -> None:
    result = run_python("while True: print('x' * 1000)")
    assert result.error == "error: killed, because it printed too much"
    assert len(result.output) == SandboxLimits().output_bytes
    shown = python("print('x' * 3000)\n1 / 0").split("\n")
    assert shown[:2] == ["x" * 2000, "[cut]"]
    assert shown[-1] == "ZeroDivisionError: division by zero"
    errors = "import sys\nwhile True: print('x' * 1000, file=sys.stderr)"
    assert run_python(errors).error == "error: killed, because it printed too much"


@pytest.mark.usefixtures("sandbox")
def test_the_same_program_prints_the_same_again() -> None:
    program = "print(hash('a'), list({'a', 'b', 'c', 'd', 'e'}))"
    assert python(program) == python(program)


def started(path: str, monkeypatch: pytest.MonkeyPatch, *tools: str) -> None:
    """Start and end the environments of a run with this search path."""
    monkeypatch.setenv("PATH", path)
    limits = Limits(processes=1, start_seconds=60.0, call_seconds=1.0)
    EnvironmentHost(spec=EnvironmentSpec(environment=None, tools=tools), limits=limits).close()


def fake(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_run_with_code_tools_is_refused_without_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = r"environment_config.sandbox=auto: .*\(bubblewrap: bwrap is not installed; "
    refusal += r"unshare: unshare is not installed\).*Ubuntu 24.04.*Docker"
    with pytest.raises(ConfigError, match=refusal):
        started(str(tmp_path), monkeypatch, TOOL)
    own = tmp_path / "own.py"
    own.write_text(
        "from mindrl.environments.code import run_python\n"
        "def judge(code: str) -> str:\n    return run_python(code).output\n"
    )
    with pytest.raises(ConfigError, match=refusal):
        started(str(tmp_path), monkeypatch, f"{own}:judge")
    started(str(tmp_path), monkeypatch, f"{GAMES}:divide")


def test_a_missing_sandbox_that_is_found_late_is_no_result_of_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "def judge(code: str) -> str:\n"
        "    from mindrl.environments.code import run_python\n"
        "    return run_python(code).output\n"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    limits = Limits(processes=1, start_seconds=60.0, call_seconds=60.0)
    host = EnvironmentHost(
        spec=EnvironmentSpec(environment=None, tools=(f"{own}:judge",)), limits=limits
    )
    host.begin(KEY, 7, {})
    assert host.answers(KEY.owner, 60.0) == [(KEY, Opening())]
    host.act(KEY, Action(text="", calls=(ToolCall(name="judge", arguments={"code": "1"}),)))
    ((_, answer),) = host.answers(KEY.owner, 60.0)
    host.close()
    assert isinstance(answer, Failed)
    assert "environment_config.sandbox=auto: tools that run code need a sandbox" in answer.reason


def test_sandboxes_that_the_system_refuses_or_that_show_the_host_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, "bwrap", "echo 'bwrap: No permissions to create a namespace' >&2; exit 1")
    fake(tmp_path, "unshare", f"echo ready; exec {sys.executable} -")
    refusal = (
        r"bubblewrap: bwrap: No permissions to create a namespace; unshare: it shows .*\betc\b"
    )
    with pytest.raises(ConfigError, match=refusal):
        started(str(tmp_path), monkeypatch, TOOL)


def test_the_tool_is_described_to_the_policy() -> None:
    (schema,) = tool_schemas(EnvironmentConfig(tools=(TOOL,)))
    assert schema["function"]["name"] == "python"
    assert list(schema["function"]["parameters"]["properties"]) == ["code"]


def test_the_tool_answers_a_policy_in_time_even_if_all_its_programs_loop() -> None:
    if find_sandbox("auto").sandbox is None:
        skip_if_the_system_refuses(*find_sandbox("auto").failures)
    spec = EnvironmentSpec(environment=None, tools=(TOOL,), call_seconds=6.0)
    limits = Limits(processes=1, start_seconds=60.0, call_seconds=6.0)
    host = EnvironmentHost(spec=spec, limits=limits)
    host.begin(KEY, 7, {})
    assert host.answers(KEY.owner, 60.0) == [(KEY, Opening())]
    codes = ["print(2 + 2)", *["while True: pass"] * 3]
    calls = tuple(ToolCall(name="python", arguments={"code": code}) for code in codes)
    host.act(KEY, Action(text="", calls=calls))
    ((_, answer),) = host.answers(KEY.owner, 60.0)
    assert isinstance(answer, EnvironmentAnswer)
    assert [each.text for each in answer.messages] == [
        "4",
        "error: killed at the time limit",
        "error: no time is left in this turn",
        "error: no time is left in this turn",
    ]
    assert host.lost == 0
    host.close()


def as_another_user(options: list[str]) -> dict[str, str]:
    """Run the forks of `FORKS` with the system's Python after `setpriv`; skip without one."""
    system, version = "/usr/bin/python3", "import sys; print(sys.version_info >= (3, 11))"
    if os.geteuid() != 0 or not Path(system).exists():
        pytest.skip("needs root, which may become another user, and /usr/bin/python3")
    if subprocess.check_output([system, "-c", version], text=True) != "True\n":
        pytest.skip("/usr/bin/python3 is older than 3.11")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for source in (ROOT / "mindrl" / "platform").glob("sandbox*"):
            shutil.copy(source, folder)
        program = f"""
import dataclasses, json, os, sys
sys.path.insert(0, {folder!r})
from sandbox import SandboxLimits, find_sandbox
found = {{}}
for name in ("bubblewrap", "unshare"):
    search = find_sandbox(name)
    if search.sandbox:
        end = search.sandbox.run({FORKS!r} + "print(os.listdir('/'))", SandboxLimits())
        found[name] = search.sandbox.user + " " + end.output.decode()
    else:
        found[name] = search.failures[0]
print(json.dumps(found))
"""
        command = ["setpriv", *options, system, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("options", "user"),
    [
        (["--reuid=1234567", "--regid=1234567", "--clear-groups"], "own"),
        # Root of a container that may not mount, but make user namespaces.
        (["--bounding-set=-sys_admin", "--inh-caps=-all"], "set first"),
    ],
    ids=["a user", "root without privileges"],
)
def test_other_users_have_the_same_limits(options: list[str], user: str) -> None:
    found_here = [each for each in as_another_user(options).values() if "not installed" not in each]
    for found in found_here:
        skip_if_the_system_refuses(found)
        words = found.removeprefix(f"{user} ").split("\n")
        assert found.startswith(f"{user} "), found
        assert 8 <= int(words[0]) < PROCESSES
        assert "root" not in words[1]
