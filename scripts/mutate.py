"""Plant faults in mindrl, one at a time, and check that the short test suite finds each.

    python scripts/mutate.py                    all faults of scripts/faults.yaml
    python scripts/mutate.py --list             their names, files and tests
    python scripts/mutate.py --only NAME ...    only these faults
    python scripts/mutate.py --part 1/4         every fourth fault, from the first
    python scripts/mutate.py --jobs 2           two faults at a time
    python scripts/mutate.py --left             only faults that scripts/faults_found.json lacks

A fault is an exact source text, which must occur once in mindrl, its replacement, and the tests
that must find it. They run in a separate worktree with the current tracked files: first the test
that found the fault the last time, by scripts/faults_found.json, then the short cases of all, and
then, if these pass, those of the night. The file is renewed, and each test that found a fault must
pass without one. Exit code 1: a fault survived. Exit code 2: a fault no longer applies, or its
tests fail without it.
"""

import argparse
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from py_compile import PycInvalidationMode

import yaml
from preloaded_python import PreloadedPython
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from suite_parts import Part

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "scripts/faults.yaml"
FOUND_BY = ROOT / "scripts/faults_found.json"
"""Which test found each fault the last time."""
PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
NIGHTLY = "not gpu and not npu and not faults"
SHORT = f"{NIGHTLY} and not nightly"
FOLDERS = ("tests/unit", "tests/distributed", "tests/npu_simulated", "tests/e2e")
"""The quickest first."""
TEST_SECONDS = 300
"""Time limit of a test that a fault keeps waiting; it then counts as failed."""
SUITE_VARIABLES = {"MINDRL_NIGHTLY", "MINDRL_TESTS_ZYGOTE"}
"""Set by scripts/test.sh for its own tests: which cases run, and a process that forks ranks."""
FOUND, SURVIVED, UNKNOWN, NO_TESTS = 1, 0, 4, 5
"""Exit codes of pytest: tests failed, all passed, one does not exist, none was selected."""


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
        names = {_short(path) for paths in found.values() for path in paths}
        return sorted(names, key=lambda name: (FOLDERS.index(name[: name.index("/", 6)]), name))

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
        if options.left:
            known = _found_by()
            chosen = [fault for fault in chosen if fault.name not in known]
        if options.part is not None:
            chosen = options.part.of(chosen)
        files = {fault.name: fault.file(ROOT) for fault in chosen}
        if options.list:
            for fault in chosen:
                print(f"{fault.name}: {_short(files[fault.name])}: {' '.join(fault.test_files())}")
            return 0
        outcomes = plant_all(chosen, options.jobs)
    except FaultError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _print(outcomes, files)
    return 0 if all(outcome.found_by for outcome in outcomes) else 1


def plant_all(chosen: Sequence[Fault], jobs: int) -> list[Outcome]:
    """Plant each fault in one of several worktrees.

    Raises:
        FaultError: A test that found a fault fails without it.
    """
    with ExitStack() as stack, _progress() as progress:
        trees = [stack.enter_context(_tree()) for _ in range(jobs)]
        bar = progress.add_task("faults", total=len(chosen))
        found = {}
        for outcome in _outcomes(chosen, trees):
            found[outcome.fault.name] = outcome
            _keep(outcome)
            progress.console.print(f"{outcome.fault.name}: {outcome.found_by or 'SURVIVED'}")
            progress.advance(bar)
        progress.update(bar, description="without a fault")
        tests = sorted({each.found_by for each in found.values()} - {""})
        if tests and (failed := trees[0].first_failure("no fault", tests, nightly=True)):
            raise FaultError(f"{failed} fails without a fault")
    return [found[fault.name] for fault in chosen]


def _outcomes(chosen: Sequence[Fault], made: Sequence["_Tree"]) -> Iterator[Outcome]:
    """Plant each fault in the next free tree; return outcomes in the order in which they come."""
    before, trees = _found_by(), queue.Queue[_Tree]()
    for tree in made:
        trees.put(tree)
    pool = ThreadPoolExecutor(len(made))
    try:
        runs = [pool.submit(_planted, each, before.get(each.name), trees) for each in chosen]
        for future in as_completed(runs):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _planted(fault: Fault, before: str | None, trees: "queue.Queue[_Tree]") -> Outcome:
    tree, start = trees.get(), time.monotonic()
    try:
        with tree.planted(fault):
            files, name = fault.test_files(), fault.name
            found_by = tree.first_failure(name, [before], nightly=True) if before else ""
            found_by = found_by or tree.first_failure(name, files)
            found_by = found_by or tree.first_failure(name, files, nightly=True)
    finally:
        trees.put(tree)
    seconds = time.monotonic() - start
    return Outcome(fault=fault, found_by=found_by, seconds=seconds)


class _Tree:
    """A worktree, and the process that runs its tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = PreloadedPython()

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        """Have a fault in the sources."""
        path = fault.file(self.root)
        text = _sources(self.root)[path]
        try:
            path.write_text(fault.planted(self.root), "utf-8")
            yield
        finally:
            path.write_text(text, "utf-8")

    def first_failure(self, what: str, tests: Sequence[str], *, nightly: bool = False) -> str:
        """Run tests until one fails; return its name, or an empty string if none does.

        `nightly` also runs the cases of the night.

        Raises:
            FaultError: Pytest could not run them.
        """
        marks, more = (NIGHTLY, {"MINDRL_NIGHTLY": "1"}) if nightly else (SHORT, {})
        options = ["-q", "-x", "-rfE", "-m", marks, "-p", "no:cacheprovider"]
        # Compiled files must not be made for sources that change within a second.
        own = {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1", **more}
        done = subprocess.run(
            [*self.python.command, "-c", PYTEST, *options, "--timeout", str(TEST_SECONDS), *tests],
            cwd=self.root,
            env={**{key: os.environ[key] for key in os.environ.keys() - SUITE_VARIABLES}, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if done.returncode in (SURVIVED, UNKNOWN, NO_TESTS):
            return ""
        if done.returncode != FOUND or failed is None:
            raise FaultError(f"{what}: pytest could not run {tests}:\n{done.stdout[-3000:]}")
        return failed[1]


@contextmanager
def _tree() -> Iterator[_Tree]:
    """Check out the current tracked files, and start what runs their tests."""
    commit = _git("stash", "create") or _git("rev-parse", "HEAD")
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        tree = _Tree(Path(folder, "tree"))
        try:
            _git("worktree", "add", "--detach", str(tree.root), commit)
            # Files that tests create once: models, data, the packages of the simulated NPU.
            (tree.root / ".cache").symlink_to(ROOT / ".cache")
            checked = PycInvalidationMode.CHECKED_HASH
            compile_dir(tree.root / "mindrl", quiet=1, invalidation_mode=checked)
            yield tree
        finally:
            tree.python.close()
            if tree.root.exists():
                _git("worktree", "remove", "--force", str(tree.root))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _print(outcomes: Sequence[Outcome], files: dict[str, Path]) -> None:
    table = Table("fault", "file", "found by", "s")
    for outcome in outcomes:
        found = outcome.found_by or "[bold red]SURVIVED[/]"
        file = _short(files[outcome.fault.name])
        table.add_row(outcome.fault.name, file, found, f"{outcome.seconds:.0f}")
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
    parser.add_argument("--left", action="store_true", help="only faults not found before")
    parser.add_argument("--part", type=Part.read, metavar="K/N", help="every Nth, from the Kth")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="faults at a time")
    return parser.parse_args()


def _found_by() -> dict[str, str]:
    with suppress(FileNotFoundError):
        return {**json.loads(_read(FOUND_BY))}
    return {}


def _keep(outcome: Outcome) -> None:
    """Write which test found a fault; leave out what is no longer a fault."""
    tests = _found_by() | {outcome.fault.name: outcome.found_by}
    known = {fault.name for fault in faults()}
    kept = {name: tests[name] for name in sorted(tests) if name in known and tests[name]}
    text = json.dumps(kept, indent=0, ensure_ascii=False)
    FOUND_BY.write_text(f"{text}\n", "utf-8")


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
