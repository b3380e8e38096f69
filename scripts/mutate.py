"""Plant faults in mindrl, one at a time, and check that the short test suite finds each.

    python scripts/mutate.py                    all faults of scripts/faults.yaml
    python scripts/mutate.py --list             their names, files and tests
    python scripts/mutate.py --only NAME ...    only these faults
    python scripts/mutate.py --part 1/4         every fourth fault, from the first
    python scripts/mutate.py --jobs 2           two faults at a time
    python scripts/mutate.py --passed           the suite has just passed without a fault

A fault is an exact source text, which must occur once in mindrl, its replacement, and the tests
that must find it. They run in a separate worktree with the current tracked files: first their short
cases, then, if these pass, those of the night, and at last the rest of the short suite. Exit code
1: a fault survived. Exit code 2: a fault no longer applies, or its tests fail without it.
"""

import argparse
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from suite_parts import Part

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "scripts/faults.yaml"
NIGHTLY = "not gpu and not npu and not faults"
SHORT = f"{NIGHTLY} and not nightly"
WHOLE_SUITE = ("tests/unit", "tests/distributed", "tests/npu_simulated", "tests/e2e")
TEST_SECONDS = 300
"""Time limit of a test that a fault keeps waiting; it then counts as failed."""
FOUND, SURVIVED, NO_TESTS = 1, 0, 5
"""Exit codes of pytest: tests failed, all passed, none was selected."""


class FaultError(Exception):
    """A fault that cannot be planted, or tests that cannot judge it."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One defect, and the tests that must find it."""

    name: str
    old: str
    new: str
    tests: tuple[str, ...]

    def test_files(self) -> list[str]:
        """Return the files of the tests in any folder of tests/.

        Raises:
            FaultError: A test file does not exist.
        """
        found = {name: _tests_of(name) for name in self.tests}
        if unknown := [name for name, paths in found.items() if not paths]:
            raise FaultError(f"{self.name}: no test file is named {' or '.join(unknown)}")
        return sorted({_short(path) for paths in found.values() for path in paths})

    def file(self, root: Path) -> Path:
        """Return the file to which the fault applies.

        Raises:
            FaultError: The text does not occur exactly once.
        """
        counts = {path: text.count(self.old) for path, text in _sources(root).items()}
        places = sum(counts.values())
        if places != 1:
            raise FaultError(f"{self.name}: its text occurs {places} times in mindrl, not once")
        return next(path for path, count in counts.items() if count)

    def planted(self, root: Path) -> str:
        """Return the text of that file with the fault."""
        return _sources(root)[self.file(root)].replace(self.old, self.new)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a fault."""

    fault: Fault
    found_by: str
    """The first test that failed; empty without one."""
    beyond: bool
    """Whether the named tests passed, but another of the short suite failed."""
    seconds: float


def faults(names: Sequence[str] = ()) -> list[Fault]:
    """Read all faults, or the named ones.

    Raises:
        FaultError: A name is unknown.
    """
    rows = yaml.safe_load(_read(FAULTS))
    made = {
        name: Fault(
            name=name,
            old=row["old"].strip("\n"),
            new=row["new"].strip("\n"),
            tests=tuple(row["tests"].split()),
        )
        for name, row in rows.items()
    }
    if unknown := sorted(set(names) - made.keys()):
        raise FaultError(f"unknown faults: {', '.join(unknown)}")
    return [made[name] for name in names or made]


def main() -> int:
    """Run the program; return its exit code."""
    options = _options()
    # Also removes the worktrees.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        chosen = faults(options.only)
        if options.part is not None:
            chosen = options.part.of(chosen)
        files = {fault.name: fault.file(ROOT) for fault in chosen}
        if options.list:
            for fault in chosen:
                print(f"{fault.name}: {_short(files[fault.name])}: {' '.join(fault.test_files())}")
            return 0
        outcomes = plant_all(chosen, options.jobs, passed=options.passed)
    except FaultError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _print(outcomes, files)
    return 0 if all(outcome.found_by for outcome in outcomes) else 1


def plant_all(chosen: Sequence[Fault], jobs: int, *, passed: bool = False) -> list[Outcome]:
    """Plant each fault in one of several worktrees; `passed` if the tests pass without them.

    Raises:
        FaultError: The tests of the faults do not pass without them.
    """
    with _worktrees(jobs) as made, _progress() as progress:
        bar = progress.add_task("without a fault", total=len(chosen))
        if not passed:
            _must_pass(chosen, made[0])
        progress.update(bar, description="faults")
        trees: queue.Queue[Path] = queue.Queue()
        for tree in made:
            trees.put(tree)
        found, pool = {}, ThreadPoolExecutor(jobs)
        try:
            for future in as_completed([pool.submit(_planted, each, trees) for each in chosen]):
                outcome = future.result()
                found[outcome.fault.name] = outcome
                progress.console.print(f"{outcome.fault.name}: {outcome.found_by or 'SURVIVED'}")
                progress.advance(bar)
        finally:
            pool.shutdown(cancel_futures=True)
    return [found[fault.name] for fault in chosen]


def _planted(fault: Fault, trees: "queue.Queue[Path]") -> Outcome:
    tree, start = trees.get(), time.monotonic()
    path = fault.file(tree)
    text = _sources(tree)[path]
    try:
        path.write_text(fault.planted(tree), "utf-8")
        found_by = _first_failure(fault.name, fault.test_files(), tree)
        if not found_by:
            found_by = _first_failure(fault.name, fault.test_files(), tree, nightly=True)
        beyond = not found_by
        if beyond:
            found_by = _first_failure(fault.name, WHOLE_SUITE, tree)
    finally:
        path.write_text(text, "utf-8")
        trees.put(tree)
    seconds = time.monotonic() - start
    return Outcome(fault=fault, found_by=found_by, beyond=beyond, seconds=seconds)


def _must_pass(chosen: Sequence[Fault], tree: Path) -> None:
    tests = sorted({test for fault in chosen for test in fault.test_files()})
    if failed := _first_failure("no fault", tests, tree):
        raise FaultError(f"{failed} fails without a fault")


def _first_failure(what: str, tests: Sequence[str], tree: Path, *, nightly: bool = False) -> str:
    """Run tests until one fails; return its name, or an empty string if all pass.

    `nightly` also runs the cases of the night.

    Raises:
        FaultError: Pytest could not run them.
    """
    marks, more = (NIGHTLY, {"MINDRL_NIGHTLY": "1"}) if nightly else (SHORT, {})
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "-m", marks]
    command += ["-p", "no:cacheprovider", "--timeout", str(TEST_SECONDS), *tests]
    done = subprocess.run(
        command,
        cwd=tree,
        # Compiled files must not be reused for sources that change within a second.
        env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"} | more,
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    if done.returncode in (SURVIVED, NO_TESTS):
        return ""
    if done.returncode != FOUND or failed is None:
        raise FaultError(f"{what}: pytest could not run {' '.join(tests)}:\n{output[-3000:]}")
    return failed[1]


@contextmanager
def _worktrees(count: int) -> Iterator[list[Path]]:
    """Check out the current tracked files several times."""
    commit = _git("stash", "create") or _git("rev-parse", "HEAD")
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        trees = [Path(folder, f"tree{at}") for at in range(count)]
        try:
            for tree in trees:
                _git("worktree", "add", "--detach", str(tree), commit)
                # Files that tests create once: models, data, the packages of the simulated NPU.
                (tree / ".cache").symlink_to(ROOT / ".cache")
            yield trees
        finally:
            for tree in filter(Path.exists, trees):
                _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _print(outcomes: Sequence[Outcome], files: dict[str, Path]) -> None:
    table = Table("fault", "file", "found by", "s")
    for outcome in outcomes:
        found = outcome.found_by or "[bold red]SURVIVED[/]"
        beyond = " (not among its tests)" if outcome.found_by and outcome.beyond else ""
        file = _short(files[outcome.fault.name])
        table.add_row(outcome.fault.name, file, f"{found}{beyond}", f"{outcome.seconds:.0f}")
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    survived = sum(not outcome.found_by for outcome in outcomes)
    console.print(f"{len(outcomes) - survived} found, {survived} survived")


def _progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))


def _options() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="only these faults")
    parser.add_argument("--list", action="store_true", help="print the faults and exit")
    parser.add_argument("--part", type=Part.read, metavar="K/N", help="every Nth, from the Kth")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="faults at a time")
    passed = "do not run the tests without a fault first"
    parser.add_argument("--passed", action="store_true", help=passed)
    return parser.parse_args()


def _short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _sources(root: Path) -> Mapping[Path, str]:
    """Read a tree without a fault."""
    return {path: _read(path) for path in sorted(root.glob("mindrl/**/*.py"))}


@cache
def _tests_of(name: str) -> list[Path]:
    return [*ROOT.glob(f"tests/**/{name}")]


def _read(path: Path) -> str:
    return path.read_text("utf-8")


if __name__ == "__main__":
    sys.exit(main())
