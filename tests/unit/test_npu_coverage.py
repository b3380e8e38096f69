"""The record of executed lines, and what is read out of it."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
UNITS = "mindrl/observability/units.py"
BODIES = {
    "mib_text": '    return f"{nbytes / MIB:,.1f} MiB"',
    "gib_text": '    return f"{nbytes / GIB:.1f} GiB"',
}
FORKS_AND_DIES = """
import os
from mindrl.observability.units import mib_text
if os.fork() == 0:
    mib_text(1)
    os.kill(os.getpid(), 9)
os.wait()
"""


@pytest.fixture
def npu_coverage(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return import_module("npu_coverage")


def test_what_a_killed_process_executed_is_on_record_and_what_nobody_did_is_named(
    tmp_path: Path, npu_coverage: ModuleType
) -> None:
    record = tmp_path / "lines.txt"
    kept = {"PYTHONPATH": str(ROOT / "scripts/lib/lines"), "RECORDED_LINES": str(record)}
    command = [sys.executable, "-c", FORKS_AND_DIES]
    subprocess.run(command, cwd=ROOT, env=os.environ | kept, check=True)
    host, npu = npu_coverage.executed(record)
    text = (ROOT / UNITS).read_text("utf-8").splitlines()
    body = {name: 1 + text.index(line) for name, line in BODIES.items()}
    lines = npu_coverage.lines_of_path(ROOT / UNITS, whole=True)
    assert set(body.values()) <= lines
    assert body["mib_text"] in host[UNITS]
    assert body["gib_text"] not in host[UNITS]
    assert npu == {}


def test_a_function_that_knows_of_devices_asks_for_their_kind_or_uses_their_memory(
    npu_coverage: ModuleType,
) -> None:
    text = """
from mindrl.platform.device_memory import free_bytes
def of_memory():
    return free_bytes("npu")
def of_kind(platform):
    return platform.kind == "cpu"
def of_neither(kind):
    return kind == "token"
"""
    assert [node.name for node in npu_coverage.of_devices(text)] == ["of_memory", "of_kind"]


def test_lines_that_follow_one_another_in_the_code_are_one_span(npu_coverage: ModuleType) -> None:
    # Line 4 is a comment.
    assert npu_coverage.spelled([3, 5, 9], [1, 3, 5, 7, 9]) == "3-5, 9"
