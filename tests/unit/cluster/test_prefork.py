"""Workers are forked off a process that has imported what they need, and begin anew without it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mindrl.cluster import prefork as prefork_module
from mindrl.cluster.deaths import death_of
from mindrl.cluster.node_watch import ProcessKey
from mindrl.cluster.prefork import PreforkServer
from mindrl.cluster.worker_process import Identity
from mindrl.config.run import RunConfig
from mindrl.launch import prefork as launch_prefork
from mindrl.launch.prefork import start_prefork
from mindrl.platform import prefork_client
from mindrl.platform.device import PLATFORMS

WITHOUT_ENGINES = """
import mindrl.cluster.prefork_process as prefork
prefork.prepare_process = lambda platform, megatron: None
prefork.main()
"""
"""What is imported for them takes 10 s."""
WORKER = """
import json, os, signal, sys
from pathlib import Path
found = {
    "arguments": sys.argv[1:], "parent": os.getppid(), "leads": os.getpgrp() == os.getpid(),
    "folder": os.getcwd(), "mark": os.environ.get("MARK"),
    "of_prefork": os.environ.get("OF_PREFORK"), "imported": "wave" in sys.modules,
    "threads": len(os.listdir("/proc/self/task")), "ray": "ray" in sys.modules,
}
print("to the output of the worker", flush=True)
Path(sys.argv[1]).with_suffix(".part").write_text(json.dumps(found))
Path(sys.argv[1]).with_suffix(".part").rename(sys.argv[1])
"""
SECONDS = 60.0


@pytest.fixture
def prefork(monkeypatch: pytest.MonkeyPatch) -> Iterator[PreforkServer]:
    monkeypatch.setattr(prefork_module, "_PROGRAM", WITHOUT_ENGINES)
    with PreforkServer("cpu", ["wave"], {"OF_PREFORK": "yes"}, megatron=False) as prefork:
        yield prefork


def started(folder: Path, prefork: PreforkServer | None, *more: str) -> tuple[dict[str, Any], str]:
    """Start a worker as Ray does; returns what it found, and what was printed."""
    program, said = folder / "worker.py", folder / "said.json"
    program.write_text(WORKER, encoding="utf-8")
    socket = {} if prefork is None else {prefork_client.SOCKET_VARIABLE: str(prefork._socket)}
    ended = subprocess.run(
        [sys.executable, prefork_client.__file__, program, str(said), *more],
        env={**os.environ, **socket, "MARK": "mine"},
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    deadline = time.monotonic() + SECONDS
    while not said.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return json.loads(said.read_text()), ended.stdout


def test_a_worker_is_forked_with_what_ray_gave_it(prefork: PreforkServer, tmp_path: Path) -> None:
    prefork.wait()
    assert prefork.seconds is not None
    found, printed = started(tmp_path, prefork, "--language=PYTHON", "--worker-id=7")
    assert found.pop("parent") == prefork._process.pid
    assert found == {
        # Ray's own program would take the language away too.
        "arguments": [str(tmp_path / "said.json"), "--worker-id=7"],
        "leads": True,
        "folder": str(tmp_path),
        "mark": "mine",
        # What the worker has is what Ray gave it, and no more.
        "of_prefork": None,
        "imported": True,
        "threads": 1,
        "ray": False,
    }
    assert printed == "to the output of the worker\n"


@pytest.mark.parametrize("why", ["no server", "it has ended", "its own environment"])
def test_else_a_worker_begins_anew(why: str, prefork: PreforkServer, tmp_path: Path) -> None:
    prefork.wait()
    if why == "it has ended":
        prefork.stop()
    own = ['--serialized-runtime-env-context={"env_vars": {"MARK": "own"}}']
    more = ["--language=PYTHON", *(own if why == "its own environment" else [])]
    found, _ = started(tmp_path, None if why == "no server" else prefork, *more)
    assert not found["imported"]
    assert found["mark"] == ("own" if why == "its own environment" else "mine")


def test_a_server_that_was_killed_is_restarted_at_the_same_socket(
    prefork: PreforkServer, tmp_path: Path
) -> None:
    prefork.wait()
    assert prefork.revived() is None
    first = prefork._process
    first.kill()
    first.wait()
    assert prefork.revived() == "was killed by SIGKILL"
    found, _ = started(tmp_path, prefork, "--language=PYTHON")
    assert found["imported"]
    assert found["parent"] == prefork._process.pid != first.pid


def test_the_signal_that_ended_a_worker_is_on_record(
    prefork: PreforkServer, tmp_path: Path
) -> None:
    prefork.wait()
    program = tmp_path / "killed.py"
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    subprocess.run(
        [sys.executable, prefork_client.__file__, program],
        env={**os.environ, prefork_client.SOCKET_VARIABLE: str(prefork._socket)},
        cwd=tmp_path,
        timeout=SECONDS,
        check=True,
    )
    deadline = time.monotonic() + SECONDS
    # The file is there before its first line.
    while not (prefork._endings.exists() and prefork._endings.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid = int(prefork._endings.read_text().split()[0])
    worker = Identity(
        process=ProcessKey(pid, 0, 0), node="n", node_id="n", device=None, address=None
    )
    assert death_of(0, worker, prefork, None) == "died: its process was killed by SIGKILL"
    assert death_of(0, None, prefork, None) == "died: its process is gone"


def test_a_cluster_started_meanwhile_knows_the_server_and_the_driver_does_not(
    prefork: PreforkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_PREFORK", "before")
    with prefork.serving():
        assert os.environ["OF_PREFORK"] == "yes"
        assert os.environ[prefork_client.SOCKET_VARIABLE] == str(prefork._socket)
    assert os.environ["OF_PREFORK"] == "before"
    assert prefork_client.SOCKET_VARIABLE not in os.environ


def test_a_server_whose_imports_fail_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefork_module, "_PROGRAM", WITHOUT_ENGINES)
    with PreforkServer("cpu", ["no_such_module"], {}, megatron=False) as prefork:
        prefork.wait()
        assert prefork.seconds is None


def test_a_server_whose_imports_hang_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(prefork_module, "_PROGRAM", WITHOUT_ENGINES)
    monkeypatch.setattr(prefork_module, "_IMPORT_SECONDS", 0.5)
    with PreforkServer("cpu", ["hangs"], {}, megatron=False) as prefork:
        prefork.wait()
        assert prefork.seconds is None
        assert not started(tmp_path, prefork, "--language=PYTHON")[0]["imported"]


@pytest.mark.parametrize("engine", ["megatron", "archon", "fsdp"])
def test_the_engine_that_trains_is_imported_and_megatron_only_for_itself(
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    asked: list[Any] = []
    monkeypatch.setattr(
        launch_prefork, "PreforkServer", lambda *given, megatron: asked.append((given[1], megatron))
    )
    config = run_config(tmp_path, {"actor_config.backend": f"{engine}:d1"})
    start_prefork(config, PLATFORMS["cpu"])
    ((modules, megatron),) = asked
    assert megatron is (engine == "megatron")
    assert any("megatron" in name for name in modules) is megatron
    assert f"mindrl.training.{engine}.engine" in modules
    assert "mindrl.rollout.vllm.engine" in modules


@pytest.mark.nightly
def test_what_the_other_engines_import_brings_no_megatron() -> None:
    program = """if True:
        import sys
        from importlib import import_module
        from mindrl.platform.device import PLATFORMS, prepare_process
        prepare_process(PLATFORMS["cpu"], megatron=False)
        for name in ("launch.worker", "training.archon.engine", "training.fsdp.engine"):
            import_module(f"mindrl.{name}")
        import_module("mindrl.rollout.vllm.engine")
        assert "megatron.core" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("where", ["on devices", "in a cluster that is joined"])
def test_only_workers_of_this_machine_and_its_cpus_are_forked(
    where: str,
    monkeypatch: pytest.MonkeyPatch,
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if where == "in a cluster that is joined":
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    assert (
        start_prefork(run_config(tmp_path), PLATFORMS["npu" if where == "on devices" else "cpu"])
        is None
    )
