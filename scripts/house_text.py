"""Figures of the house that its text alone gives: lines, rooms, imports, names.

A room is a folder of mindrl itself. All paths are relative to the folder that holds mindrl/.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from syntax_trees import nodes_of, tree_of

Sources = Mapping[str, str]
"""Text by path."""

ENGINES = {
    "Megatron": ("megatron", ("mindrl/training/megatron/", "mindrl/training/")),
    "vLLM": ("vllm", ("mindrl/rollout/vllm/", "mindrl/rollout/")),
}
"""The word, and the engine's room: the first of these folders that a revision has."""
FREE_TO_NAME = frozenset({"platform", "patches", "migrate"})
"""Folders whose work is other people's code: patches, environment, MindSpeed-RL's files."""
KEYS = {
    "sampling": ("min_p", "top_k"),
    "optimizer": ("adam_beta2",),
    "policy loss": ("kl_cov_coef",),
}
OVER_DEVIATION = re.compile(r"/\s*\(\s*[\w.]*std\w*(\[[^\]]*\])?\s*\+\s*\w*eps")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number of one revision."""

    group: str
    name: str
    value: float | None
    """None: the revision has no such thing."""
    target: str = ""
    unit: str = ""
    shown: str = ""
    """What a table says in place of the value."""
    details: tuple[str, ...] = ()


def read_sources(folder: Path) -> dict[str, str]:
    """Read every Python file under mindrl/ of a checkout."""
    files = sorted(folder.glob("mindrl/**/*.py"))
    return {file.relative_to(folder).as_posix(): file.read_text("utf-8") for file in files}


def text_figures(sources: Sources) -> Iterator[Figure]:
    """Yield all figures of the text."""
    yield from _line_figures(sources)
    yield from _engine_figures(sources)
    yield from _import_figures(sources)
    yield from _key_figures(sources)


def room_of(path: str) -> str:
    """Return the room of a file; a file of mindrl itself is in none, and the result is empty."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else ""


def lines_by_room(sources: Sources) -> Counter[str]:
    """Count lines as `wc -l` does; files in no room are under the empty name."""
    lines: Counter[str] = Counter()
    for path, text in sources.items():
        lines[room_of(path)] += text.count("\n")
    return lines


def _line_figures(sources: Sources) -> Iterator[Figure]:
    rooms = lines_by_room(sources)
    total = rooms.total()
    order = [(name, lines) for name, lines in rooms.most_common() if name]
    biggest, most = order[0]
    yield Figure(group="lines", name="shipped lines", value=total, target="24000")
    yield Figure(group="lines", name="shipped files", value=len(sources))
    yield Figure(
        group="rooms",
        name="biggest room",
        value=round(100 * most / total, 1),
        target="12",
        shown=f"{100 * most / total:.1f} % {biggest}",
        details=tuple(f"{name} {lines}" for name, lines in order),
    )


def files_that_name(sources: Sources, word: str, room: str) -> list[str]:
    """List the files outside a room that name an engine.

    In code, in a string, in a docstring or in a comment. A backend string such as `megatron:d4t2`
    is a user's word and no such name; neither is a key such as `megatron_training`. Files in
    `FREE_TO_NAME` and those that read MindSpeed-RL's configuration may name any engine.
    """
    name = re.compile(rf"\b{word}\b(?![:\[])", re.IGNORECASE)
    return [
        path
        for path, text in sources.items()
        if not path.startswith(room) and not _free_to_name(path) and name.search(text)
    ]


def _free_to_name(path: str) -> bool:
    *folders, file = path.split("/")
    return bool(FREE_TO_NAME & {*folders}) or file.startswith("mindspeed_rl")


def _engine_figures(sources: Sources) -> Iterator[Figure]:
    for engine, (word, rooms) in ENGINES.items():
        own, shared = rooms
        room = own if any(path.startswith(own) for path in sources) else shared
        found = files_that_name(sources, word, room)
        yield Figure(
            group="engines",
            name=f"files that name {engine} outside its room",
            value=len(found),
            target="5",
            details=(f"its room: {room}", *found),
        )


def import_cycles(sources: Sources) -> list[list[str]]:
    """List the sets of modules of which each imports every other, directly or not.

    Every import counts, those in functions and those for the type checker alone too.
    """
    modules = {_module(path): text for path, text in sources.items()}
    reached = _reached({name: _imports(text, modules) for name, text in modules.items()})
    cycles = {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in modules
        if name in reached[name]
    }
    return sorted(sorted(cycle) for cycle in cycles)


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(text: str, modules: Mapping[str, str]) -> set[str]:
    names: set[str] = set()
    for node in nodes_of(text):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in modules else node.module for name in inner}
    return names & modules.keys()


def _reached(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    reached: dict[str, set[str]] = {}
    for name, first in graph.items():
        found, ahead = set(first), [*first]
        while ahead:
            new = graph[ahead.pop()] - found
            found |= new
            ahead += new
        reached[name] = found
    return reached


def types_in_two_rooms(sources: Sources) -> dict[str, list[str]]:
    """Map each public name of a type that two rooms define to these rooms.

    Types are the classes of a module and what it writes as `Name = ...` that is no call, such as
    `Rule = Callable[...]`.
    """
    rooms: dict[str, set[str]] = defaultdict(set)
    for path, text in sources.items():
        for name in _types(tree_of(text)):
            rooms[name].add(room_of(path))
    return {name: sorted(found) for name, found in sorted(rooms.items()) if len(found) > 1}


def _types(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not isinstance(
                value, ast.Call | ast.Constant
            ):
                if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name):
                    yield name


def _import_figures(sources: Sources) -> Iterator[Figure]:
    cycles = import_cycles(sources)
    twice = types_in_two_rooms(sources)
    yield Figure(
        group="cycles",
        name="import cycles",
        value=len(cycles),
        target="0",
        details=tuple(" <-> ".join(cycle) for cycle in cycles),
    )
    yield Figure(
        group="types",
        name="types of one name in two rooms",
        value=len(twice),
        target="0",
        details=tuple(f"{name}: {', '.join(rooms)}" for name, rooms in twice.items()),
    )


def files_with(sources: Sources, words: Iterable[str]) -> list[str]:
    """List the files that name any of these words, but those that read MindSpeed-RL's files."""
    pattern = re.compile(rf"\b({'|'.join(words)})\b")
    return [
        path
        for path, text in sources.items()
        if pattern.search(text) and not _reads_mindspeed_rl(path)
    ]


def _reads_mindspeed_rl(path: str) -> bool:
    return "/migrate/" in path or path.rpartition("/")[2].startswith("mindspeed_rl")


def _key_figures(sources: Sources) -> Iterator[Figure]:
    for kind, words in KEYS.items():
        found = files_with(sources, words)
        yield Figure(
            group="files",
            name=f"files to open for {kind} keys such as {words[0]}",
            value=len(found),
            target="2",
            details=tuple(found),
        )
    formula = [path for path, text in sources.items() if OVER_DEVIATION.search(text)]
    yield Figure(
        group="files",
        name="files with the advantage formula of a group",
        value=len(formula),
        target="1",
        details=tuple(formula),
    )
