"""Parsed sources, kept for all that read them."""

import ast
from functools import cache


@cache
def tree_of(source: str) -> ast.Module:
    """Return the syntax tree of a source text."""
    return ast.parse(source)


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Return the nodes of a source text, outer ones first."""
    return (*ast.walk(tree_of(source)),)
