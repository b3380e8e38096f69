"""Parsed sources, kept for all that read them."""

import ast
import gc
from functools import cache


@cache
def tree_of(source: str) -> ast.Module:
    """Return the syntax tree of a source text."""
    tree = ast.parse(source)
    # It stays in memory; collections that look at all trees took more time than the checks.
    gc.freeze()
    return tree


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Return the nodes of a source text, outer ones first."""
    return (*ast.walk(tree_of(source)),)
