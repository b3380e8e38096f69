"""The figure of names in the code that plain English avoids."""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from house_text import Figure, Sources
from syntax_trees import tree_of

DIALECT_WORDS = frozenset(
    [
        "alike",
        "ask",
        "asked",
        "begun",
        "behind",
        "beside",
        "heard",
        "heed",
        "lone",
        "nobody",
        "said",
        "say",
        "says",
        "speak",
        "stem",
        "taking",
        "tell",
        "tells",
        "told",
        "whence",
        "whoever",
        "whose",
    ]
)
"""Words of a name that has a better one among the terms of the field."""
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def dialect_names(source: str) -> list[str]:
    """List the dialect names that a source text defines, once for each definition.

    Functions, classes, parameters, attributes and the names of a module or class count; local
    variables do not.
    """
    return [name for name in _defined(tree_of(source), is_local=False) if _is_dialect(name)]


def _is_dialect(name: str) -> bool:
    return not DIALECT_WORDS.isdisjoint(part.lower() for part in _PART.findall(name))


def _defined(tree: ast.AST, *, is_local: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        is_inside = is_local
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
                is_inside = True
            case ast.ClassDef(name=name):
                yield name
                is_inside = False
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) if not is_local:
                yield name
        yield from _defined(node, is_local=is_inside)


def name_figures(sources: Sources) -> Iterator[Figure]:
    """Yield how many dialect names the sources define."""
    found = {path: dialect_names(text) for path, text in sources.items()}
    counts = Counter(name for names in found.values() for name in names)
    yield Figure(
        group="names",
        name="dialect names of functions, classes, parameters and fields",
        value=counts.total(),
        target="0",
        details=tuple(f"{name} {count}" for name, count in counts.most_common(5)),
    )
