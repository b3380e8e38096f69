"""Measure the lines of the NPU path that tests execute, on the host and on simulated NPUs.

    python scripts/npu_coverage.py                       run the tests, then print
    python scripts/npu_coverage.py --record lines.txt    keep the record, or print an existing one

The NPU path is mindrl/platform, and in other rooms each function that reads the kind of device or
uses the platform's copies, memory or attention. Only lines of code count, without strings and
comments. The record has the executed lines of each process, including those of Ray and killed ones.
"""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
PLATFORM = "mindrl/platform/"
KINDS = {"cpu", "npu", "gpu", "cuda"}
OF_DEVICES = {
    f"mindrl.platform.{name}" for name in ("attention", "copies", "device_memory", "host_arena")
}
TESTS = ("tests/unit/platform", "tests/unit/doctor", "tests/unit/workers", "tests/npu_simulated")
Lines = dict[str, set[int]]
"""Line numbers by file."""


def main() -> int:
    """Run, read, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="record to keep or to print")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = options.record or Path(folder, "lines.txt")
        code = 0 if record.exists() else run_tests(record.resolve())
        print_table(*executed(record))
    return code


def run_tests(record: Path) -> int:
    """Run the tests of the NPU path; every process appends to the record."""
    paths = filter(None, (str(ROOT / "scripts/lib/lines"), os.environ.get("PYTHONPATH")))
    kept = {"RECORDED_LINES": str(record), "PYTHONPATH": os.pathsep.join(paths)}
    marks = "not gpu and not npu and not faults and not nightly"
    command = [sys.executable, "-m", "pytest", "-q", "-m", marks, *TESTS]
    return subprocess.run(command, cwd=ROOT, env=os.environ | kept, check=False).returncode


def executed(record: Path) -> tuple[Lines, Lines]:
    """Return the lines executed by processes without a device, and by those with one."""
    found: dict[str, Lines] = {"host": defaultdict(set), "npu": defaultdict(set)}
    for line in record.read_text("utf-8").splitlines():
        device, path, number = line.split()
        found[device][path].add(int(number))
    return found["host"], found["npu"]


def print_table(host: Lines, npu: Lines) -> None:
    """Print a row per file, and the totals."""
    totals = [0, 0, 0, 0]
    row = "{:<54} {:>5} {:>5} {:>5} {:>6}  {}"
    print(row.format("file", "lines", "host", "npu", "either", "not executed"))
    for path in sorted((ROOT / "mindrl").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        lines = lines_of_path(path, whole=name.startswith(PLATFORM))
        if not lines:
            continue
        either = host[name] | npu[name]
        counts = [len(lines), *(len(lines & each) for each in (host[name], npu[name], either))]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        print(row.format(name, *counts, spelled(sorted(lines - either), lines)))
    print(row.format("all", *totals, ""))


def lines_of_path(path: Path, *, whole: bool) -> set[int]:
    """Return the lines of code of a file, or those of its functions that depend on devices."""
    text = path.read_text("utf-8")
    lines = set(code_lines(compile(text, str(path), "exec")))
    if whole:
        return lines
    spans = [range(node.lineno + 1, (node.end_lineno or 0) + 1) for node in of_devices(text)]
    return {line for line in lines if any(line in span for span in spans)}


def code_lines(code: CodeType) -> Iterator[int]:
    """Yield each line with an instruction."""
    for _, _, line in code.co_lines():
        if line:
            yield line
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from code_lines(inner)


def of_devices(text: str) -> Iterator[ast.FunctionDef]:
    """Yield the functions that read the kind of device, or use the platform's functions for it."""
    tree = ast.parse(text)
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in OF_DEVICES
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(map(asks_with(names), ast.walk(node))):
            yield node


def asks_with(names: Collection[str]):  # noqa: ANN201 - a question to a node
    """Return a predicate: whether a node uses one of the names, or compares with a kind."""

    def asks(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Name) and node.func.id in names
        if not isinstance(node, ast.Compare):
            return False
        sides = (node.left, *node.comparators)
        return any(isinstance(side, ast.Constant) and side.value in KINDS for side in sides)

    return asks


def spelled(missing: list[int], lines: Collection[int]) -> str:
    """Format line numbers, with consecutive ones as a span."""
    order = {line: place for place, line in enumerate(sorted(lines))}
    spans = [[line] for line in missing[:1]]
    for before, line in pairwise(missing):
        if order[line] == order[before] + 1:
            spans[-1].append(line)
        else:
            spans.append([line])
    ends = (f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)
    return ", ".join(ends)


if __name__ == "__main__":
    sys.exit(main())
