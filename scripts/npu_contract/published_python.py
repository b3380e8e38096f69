"""Read the definitions in the Python files of published packages.

Names are resolved as by the interpreter: through imports, star imports, lazy tables such as
`{"LLM": ".entrypoints.llm:LLM"}`, base classes and attributes that methods set.
"""

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from npu_contract.published_source import PublishedSource

Function = ast.FunctionDef | ast.AsyncFunctionDef
_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError", "Exception")


@dataclass(frozen=True, kw_only=True)
class Found:
    """Place of a definition."""

    module: str
    file: str
    node: ast.AST | None = None
    """None for a module."""

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{getattr(self.node, 'lineno', 1)}"


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Arguments that a call may name."""

    names: tuple[str, ...]
    takes_any: bool
    """Whether `**` accepts other names."""


class PublishedPython:
    """The Python of several packages that import each other."""

    def __init__(self, packages: Mapping[str, PublishedSource]) -> None:
        """Read packages, by their import names."""
        self.packages = packages
        self.tree = cache(self._tree)

    def file_of(self, module: str) -> str | None:
        """Return the file of a module."""
        source = self.packages.get(_top(module))
        path = module.replace(".", "/")
        names = (f"{path}/__init__.py", f"{path}.py")
        return next((name for name in names if source and name in source.names), None)

    def _tree(self, module: str) -> ast.Module:
        file = self.file_of(module)
        assert file is not None
        return parsed(self.packages[_top(module)].text(file))

    def find(self, name: str, trail: frozenset[str] = frozenset()) -> Found | None:
        """Find a module, or a member of a module or a class, by its dotted name."""
        if name in trail:
            return None
        if file := self.file_of(name):
            return Found(module=name, file=file)
        owner, _, last = name.rpartition(".")
        holder = self.find(owner, trail | {name}) if owner else None
        if holder is None:
            return None
        if holder.node is None:
            return self._in_module(holder, last, trail | {name})
        if isinstance(holder.node, ast.ClassDef):
            return self._in_class(holder, holder.node, last, trail | {name})
        return None

    def signature(self, found: Found) -> Signature | None:
        """Return the arguments of a function or a class; None if they are not written."""
        if isinstance(found.node, Function):
            return _of_function(found.node)
        if not isinstance(found.node, ast.ClassDef):
            return None
        made = self._in_class(found, found.node, "__init__", frozenset())
        if made is not None and isinstance(made.node, Function):
            return _of_function(made.node)
        return Signature(names=tuple(self._fields(found, found.node)), takes_any=False)

    def imports(self, name: str, goal: str) -> list[str]:
        """Return the chain of modules by which importing one imports `goal` or a member of it.

        Imports in functions, under a condition, or with a caught failure do not count. For a
        function only its own imports count, also those under a condition.
        """
        found = self.find(name)
        if found is None or not isinstance(found.node, Function):
            return self._chain(name, goal, set())
        own = _certain_imports(found.node.body, or_under_a_condition=True)
        targets = self._targets(found.module, own)
        return [name, goal] if any(_is_inside(target, goal) for target in targets) else []

    def _chain(self, module: str, goal: str, seen: set[str]) -> list[str]:
        parts = module.split(".")
        for above in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
            if above in seen or self.file_of(above) is None:
                continue
            seen.add(above)
            for target in self._targets(above, _certain_imports(self.tree(above).body)):
                if _is_inside(target, goal):
                    return [above, target]
                if rest := self._chain(target, goal, seen):
                    return [above, *rest]
        return []

    def _targets(
        self, module: str, imports: Iterator[ast.Import | ast.ImportFrom]
    ) -> Iterator[str]:
        for node in imports:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            else:
                base = self._base(module, node)
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)

    def _base(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        file = self.file_of(module) or ""
        package = module.split(".")[: None if file.endswith("__init__.py") else -1]
        package = package[: len(package) - node.level + 1]
        return ".".join([*package, *([node.module] if node.module else [])])

    def _in_module(self, holder: Found, name: str, trail: frozenset[str]) -> Found | None:
        module = holder.module
        stars = []
        for node in _statements(self.tree(module).body):
            if _defines(node, name):
                return Found(module=module, file=holder.file, node=node)
            if isinstance(node, ast.ImportFrom):
                base = self._base(module, node)
                found = self._imported(node, base, name, trail)
                if found is not None:
                    return found
                if node.names[0].name == "*":
                    stars.append(base)
            elif isinstance(node, ast.Assign) and (lazy := _lazy_target(node, name)):
                path = f"{module}{lazy}" if lazy.startswith(".") else lazy
                return self.find(path.replace(":", "."), trail)
        others = (self.find(f"{base}.{name}", trail) for base in stars)
        return next((found for found in others if found is not None), None)

    def _imported(
        self, node: ast.ImportFrom, base: str, name: str, trail: frozenset[str]
    ) -> Found | None:
        for alias in node.names:
            if (alias.asname or alias.name) == name:
                return self.find(f"{base}.{alias.name}", trail)
        return None

    def _in_class(
        self, holder: Found, node: ast.ClassDef, name: str, trail: frozenset[str]
    ) -> Found | None:
        for member in node.body:
            if _defines(member, name):
                return Found(module=holder.module, file=holder.file, node=member)
        for inner in ast.walk(node):
            if _sets_on_self(inner, name):
                return Found(module=holder.module, file=holder.file, node=inner)
        for base in self._bases(holder, node):
            assert isinstance(base.node, ast.ClassDef)
            found = self._in_class(base, base.node, name, trail)
            if found is not None:
                return found
        return None

    def _bases(self, holder: Found, node: ast.ClassDef) -> Iterator[Found]:
        for expression in node.bases:
            found = self.find(f"{holder.module}.{ast.unparse(expression)}")
            if found is not None and isinstance(found.node, ast.ClassDef):
                yield found

    def _fields(self, holder: Found, node: ast.ClassDef) -> Iterator[str]:
        for base in self._bases(holder, node):
            assert isinstance(base.node, ast.ClassDef)
            yield from self._fields(base, base.node)
        for member in node.body:
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                yield member.target.id


def parsed(text: str) -> ast.Module:
    """Parse Python code of others, without warnings about its style."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _is_inside(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _top(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def _of_function(node: Function) -> Signature:
    given = node.args
    named = (*given.posonlyargs, *given.args, *given.kwonlyargs)
    return Signature(
        names=tuple(each.arg for each in named if each.arg != "self"),
        takes_any=given.kwarg is not None,
    )


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including those under conditions and in `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            handlers = getattr(node, "handlers", ())
            for part in (node, *handlers):
                yield from _statements(part.body)
            yield from _statements(getattr(node, "orelse", []))


def _certain_imports(
    body: list[ast.stmt], *, or_under_a_condition: bool = False
) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in body:
        caught = isinstance(node, ast.Try) and any(map(_catches_imports, node.handlers))
        skipped = caught or (isinstance(node, ast.If) and not or_under_a_condition)
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.With | ast.ClassDef | ast.Try | ast.If) and not skipped:
            yield from _certain_imports(node.body, or_under_a_condition=or_under_a_condition)


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or any(word in ast.dump(handler.type) for word in _IMPORT_ERRORS)


def _defines(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name == name
        case ast.Assign():
            return any(isinstance(each, ast.Name) and each.id == name for each in node.targets)
        case ast.AnnAssign(target=ast.Name(id=target)):
            return target == name
    return False


def _sets_on_self(node: ast.AST, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    return any(
        isinstance(each, ast.Attribute)
        and each.attr == name
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
        for each in targets
    )


def _lazy_target(node: ast.Assign, name: str) -> str:
    """Return the entry of a name in a table of lazy imports."""
    if not isinstance(node.value, ast.Dict):
        return ""
    for key, value in zip(node.value.keys, node.value.values, strict=True):
        match key, value:
            case ast.Constant(value=found), ast.Constant(value=str(target)) if found == name:
                return target if ":" in target else ""
    return ""
