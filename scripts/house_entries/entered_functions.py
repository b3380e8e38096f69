"""Record which functions of mindrl a process enters, and how often it calls some of them.

While a module of mindrl is compiled, a statement is added to the start of each function. The rest
of the process is unchanged, so the duration of a run does not change. Each process writes its own
file without buffering, so a killed worker leaves a complete record.
"""

import ast
import builtins
import hashlib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

FOLDER = "HOUSE_ENTRIES"
"""Environment variable with the folder of the files."""
COUNTED = "HOUSE_COUNTED"
"""Environment variable with comma-separated names of functions of which every call is recorded."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def outermost_functions(tree: ast.AST) -> Iterator[Function]:
    """Yield the outermost functions and methods of a module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node
        else:
            yield from outermost_functions(node)


def watched(tree: ast.Module, path: str, counted: frozenset[str]) -> ast.Module:
    """Let every outermost function report itself; line numbers stay."""
    for function in outermost_functions(tree):
        _begin_with(function, f"house_entered({path!r}, {function.lineno})")
    for node in tree.body:
        if isinstance(node, Function) and node.name in counted:
            _begin_with(node, f"house_called({node.name!r})")
    return tree


def _begin_with(function: Function, call: str) -> None:
    statement = ast.parse(call).body[0]
    for node in ast.walk(statement):
        ast.copy_location(node, function)
    function.body.insert(1 if ast.get_docstring(function) is not None else 0, statement)


class Reports:
    """The file of this process, and of those that it forks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entered: set[tuple[str, int]] = set()

    def house_entered(self, path: str, line: int) -> None:
        """Record the first entry of a function."""
        if (path, line) not in self.entered:
            self.entered.add((path, line))
            self._write("entered", path, str(line))

    def house_called(self, name: str) -> None:
        """Record a call with its caller and a digest of the arguments."""
        frame = sys._getframe(1)
        code, caller = frame.f_code, frame.f_back
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        text = repr([frame.f_locals[name] for name in names])
        digest = hashlib.sha256(re.sub(r" at 0x\w+", "", text).encode()).hexdigest()[:12]
        self._write("called", name, digest, caller.f_code.co_qualname if caller else "")

    def _write(self, *fields: str) -> None:
        path = self.folder / str(os.getpid())
        with path.open("a", encoding="utf-8") as file:
            if not file.tell():
                first = ["process", str(time.monotonic_ns()), *sys.orig_argv]
                file.write("\t".join(first).replace("\n", " ") + "\n")
            file.write("\t".join(fields) + "\n")


class WatchedLoader(SourceFileLoader):
    """Compiles a module with its reports, without writing compiled files."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source at every import."""
        path = self.get_filename(fullname)
        counted = frozenset(os.environ[COUNTED].split(","))
        tree = watched(ast.parse(self.get_data(path)), path, counted)
        return compile(tree, path, "exec", dont_inherit=True)


class WatchedFinder(MetaPathFinder):
    """Finds the modules of mindrl as Python does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec with the watching loader; None for other packages."""
        if fullname.split(".", maxsplit=1)[0] != "mindrl":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec and spec.origin and isinstance(spec.loader, SourceFileLoader):
            spec.loader = WatchedLoader(fullname, spec.origin)
        return spec


def install() -> None:
    """Watch the modules of mindrl that this process will import."""
    reports = Reports(Path(os.environ[FOLDER]))
    vars(builtins).update(house_entered=reports.house_entered, house_called=reports.house_called)
    sys.meta_path.insert(0, WatchedFinder())
