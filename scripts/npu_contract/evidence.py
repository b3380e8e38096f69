"""Search the entries of a contract in published sources, and return where they were found."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from npu_contract.entry import Entry, Kind
from npu_contract.published_python import Found, Function, PublishedPython, parsed
from npu_contract.published_source import PublishedSource

_SCHEMAS = "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"
_EXPORTS = "torch_npu/utils/exposed_api.py"
_DESCRIPTIONS = "torch_npu/_op_plugin_docs.py"
_READERS = ("environ.get", "getenv", "environ.pop")
_STRENGTHS = ("read", "set", "named")
_FOR_OTHER_WEIGHTS = ("/quantization/", "/_310p/")
"""Folders for weights of 8 bits and for another device."""
_Node = TypeVar("_Node", bound=ast.AST)


class MissingError(Exception):
    """The published source lacks an entry; the message names the part."""


class Evidence:
    """Evidence for an entry in the published sources."""

    def __init__(self, python: PublishedPython) -> None:
        """Read the packages of `python`."""
        self.python = python
        self.finders: Mapping[Kind, Callable[[Entry, PublishedSource], str]] = {
            "module": self._module,
            "name": self._name,
            "operator": self._operator,
            "format": self._format,
            "call": self._call,
            "variable": self._variable,
            "setting": self._setting,
            "entry point": self._entry_point,
            "requirement": self._requirement,
            "import": self._import,
            "casts": self._casts,
        }

    def of(self, entry: Entry) -> str:
        """Return the evidence and its place.

        Raises:
            MissingError: The entry, or a part of it, is missing.
        """
        source = self.python.packages[entry.pin.package]
        return self.finders[entry.kind](entry, source)

    def _module(self, entry: Entry, _: PublishedSource) -> str:
        file = self.python.file_of(entry.name)
        if file is None:
            raise MissingError(f"no file for module {entry.name}")
        return f"file {file}"

    def _name(self, entry: Entry, _: PublishedSource) -> str:
        found = self._found(entry.name)
        what = _word(found)
        if not entry.arguments:
            return f"{what}, {found.place}"
        taken = self.python.signature(found)
        missing = set(entry.arguments) - set(taken.names if taken else ())
        if missing and taken and taken.takes_any and entry.passed_on_to:
            receiver = self._found(entry.passed_on_to)
            passed = self.python.signature(receiver)
            missing -= set(passed.names if passed else ())
            what = f"{what} with arguments, others passed on to {receiver.place}"
        else:
            what = f"{what} with arguments"
        _refuse(entry.name, missing)
        return f"{what}, {found.place}"

    def _found(self, name: str) -> Found:
        found = self.python.find(name)
        if found is None:
            raise MissingError(f"{name} is not defined")
        return found

    def _operator(self, entry: Entry, source: PublishedSource) -> str:
        name = entry.name.rpartition(".")[2]
        text = source.text(_SCHEMAS) if _SCHEMAS in source.names else ""
        schema = re.search(rf"func: {re.escape(name)}\((.*)\) ->", text)
        if schema is None:
            raise MissingError(f"{entry.name} has no schema in {_SCHEMAS}")
        taken = {part.split("=")[0].split()[-1] for part in schema[1].split(",") if part.strip()}
        _refuse(entry.name, set(entry.arguments) - taken)
        found = f"schema with arguments, {_SCHEMAS}:{_line(text, schema.start())}"
        if entry.name.startswith("torch.ops."):
            return found
        exports = source.text(_EXPORTS) if _EXPORTS in source.names else ""
        if f"'{name}'" not in exports:
            raise MissingError(f"{entry.name} is not exported by {_EXPORTS}")
        return f"{found}; exported"

    def _format(self, entry: Entry, source: PublishedSource) -> str:
        argument, value = entry.values
        text = source.text(_DESCRIPTIONS) if _DESCRIPTIONS in source.names else ""
        begin = text.find(f"\n{entry.name}(")
        described = text.find(f"\n{argument}", begin) if begin >= 0 else -1
        # A value is on the argument's line, or at the start of a following line.
        place = text.find(value, described) if described >= 0 else -1
        if place < 0 or place - described > 2000:
            raise MissingError(f"{entry.name}: {argument} does not mention {value!r}")
        return f"described, {_DESCRIPTIONS}:{_line(text, place)}"

    def _call(self, entry: Entry, source: PublishedSource) -> str:
        last = entry.name.rpartition(".")[2]
        for file, node in _nodes(source, ast.Call, f"{last}(", entry.pin.module):
            if ast.unparse(node.func) == entry.name and _strings(node) >= set(entry.values):
                return f"call, {file}:{node.lineno}"
        raise MissingError(f"no call of {entry.name} with {', '.join(entry.values)}")

    def _variable(self, entry: Entry, source: PublishedSource) -> str:
        uses = sorted(
            (_STRENGTHS.index(use), file, line)
            for file in source.with_suffix(".py", below=_folder(entry.pin.module))
            if entry.name in source.text(file)
            for use, line in _uses(parsed(source.text(file)), entry.name)
        )
        if uses:
            strength, file, line = uses[0]
            return f"{_STRENGTHS[strength]} in Python, {file}:{line}"
        for file in source.with_suffix(".so"):
            if entry.name.encode() in source.data(file):
                return f"string in shared library, {file}"
        for file in source.with_suffix(".md", ".sh"):
            if re.search(rf"\b{entry.name}\b", source.text(file)):
                return f"documentation only, {file}"
        raise MissingError(f"{entry.name} does not occur")

    def _setting(self, entry: Entry, source: PublishedSource) -> str:
        folder = _folder(entry.pin.module)
        for file, node in _nodes(source, ast.Attribute, f".{entry.name}", folder):
            holder = ast.unparse(node.value)
            if node.attr == entry.name and holder in {"args", "self.args", "full_args"}:
                return f"read as {holder}.{entry.name}, {file}:{node.lineno}"
        raise MissingError(f"args.{entry.name} is never read")

    def _entry_point(self, entry: Entry, source: PublishedSource) -> str:
        for file in source.with_suffix("entry_points.txt"):
            section = re.search(rf"\[{re.escape(entry.name)}\]([^\[]*)", source.text(file))
            if section and entry.values[0] in section[1]:
                return f"metadata, {file}"
        raise MissingError(f"no {entry.values[0]} among the entry points {entry.name}")

    def _requirement(self, entry: Entry, source: PublishedSource) -> str:
        wanted = f"{entry.name}=={entry.values[0]}"
        for file in source.with_suffix("METADATA", "PKG-INFO"):
            for line in source.text(file).splitlines():
                said = line.removeprefix("Requires-Dist:").split(";")[0].replace(" ", "")
                # The wheels of one architecture require a build of torch: 2.10.0+cpu.
                if line.startswith("Requires-Dist:") and said.split("+")[0] == wanted:
                    return f"metadata, {file}"
        raise MissingError(f"the metadata does not require {wanted}")

    def _import(self, entry: Entry, _: PublishedSource) -> str:
        target = entry.values[0]
        chain = self.python.imports(entry.name, target)
        if not chain:
            raise MissingError(f"{entry.name} does not import {target}, so no patch is needed")
        if file := self.python.file_of(target):
            raise MissingError(f"{target} is published in {file}, so no patch is needed")
        return f"imported by {self._found(chain[-2]).file}; not published"

    def _casts(self, entry: Entry, source: PublishedSource) -> str:
        folder = _folder(entry.pin.module)
        found = {
            f"{file.removesuffix('.py').replace('/', '.')}.{name}"
            for file in source.with_suffix(".py", below=folder)
            if "npu_format_cast(" in source.text(file)
            and not any(part in file for part in _FOR_OTHER_WEIGHTS)
            for name in _casting(parsed(source.text(file)), entry.name)
        }
        if new := sorted(found - set(entry.values)):
            raise MissingError(f"{entry.name}: weights are also cast in {', '.join(new)}")
        if gone := sorted(set(entry.values) - found):
            raise MissingError(f"{entry.name}: weights are not cast in {', '.join(gone)}")
        return f"npu_format_cast in {len(found)} functions, all known"


def _refuse(name: str, missing: set[str]) -> None:
    if missing:
        raise MissingError(f"{name} does not take {', '.join(sorted(missing))}")


def _folder(module: str) -> str:
    return module.replace(".", "/") + "/"


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _word(found: Found) -> str:
    match found.node:
        case None:
            return "module"
        case ast.ClassDef():
            return "class"
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return "def"
    return "assigned"


def _strings(call: ast.Call) -> set[str]:
    found = (each.value for each in call.args if isinstance(each, ast.Constant))
    return {value for value in found if isinstance(value, str)}


def _nodes(
    source: PublishedSource, kind: type[_Node], text: str, folder: str
) -> Iterator[tuple[str, _Node]]:
    """Yield the nodes of a kind in the files that contain a text."""
    files = source.with_suffix(".py", below=folder)
    for file in (file for file in files if text in source.text(file)):
        for node in ast.walk(parsed(source.text(file))):
            if isinstance(node, kind):
                yield file, node


def _uses(tree: ast.Module, name: str) -> Iterator[tuple[str, int]]:
    """Yield how and in which line a file uses an environment variable."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=owner, slice=ast.Constant(value=found)) if (
                found == name and ast.unparse(owner).endswith("environ")
            ):
                yield ("set" if isinstance(node.ctx, ast.Store) else "read"), node.lineno
            case ast.Call(func=function, args=[ast.Constant(value=found), *_]) if found == name:
                called = ast.unparse(function)
                yield ("read" if called.endswith(_READERS) else "named"), node.lineno
            case ast.Constant(value=found) if found == name:
                yield "named", node.lineno


def _casting(tree: ast.Module, value: str) -> Iterator[str]:
    """Yield the functions and methods that cast a tensor to a format."""
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for member in members:
            if isinstance(member, Function) and any(
                _is_cast(each, value) for each in ast.walk(member)
            ):
                yield f"{owner}{member.name}"


def _is_cast(node: ast.AST, value: str) -> bool:
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("npu_format_cast"):
        return False
    # 29 is the number of the format in CANN.
    return any(ast.unparse(each) in {value, "29"} for each in node.args[1:])
