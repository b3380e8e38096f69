"""Limits of a YAML file, checked before it is loaded: bytes, and expanded anchors."""

from pathlib import Path

import yaml

from mindrl.errors import ConfigError
from mindrl.observability.regular_files import open_regular

MOST_BYTES = 1 << 20
"""Maximum size of a file: a configuration with every key is below 100 KB."""
MOST_VALUES = 100_000
"""Maximum number of values in a file; each use of an anchor counts."""


def bounded_graph(path: Path) -> yaml.Node | None:
    """Return the node graph of a file, in which anchors are shared and not expanded.

    None if the file is empty.

    Raises:
        ConfigError: The file is too large, or its anchors expand to too many values.
        OSError, RecursionError, UnicodeError, YAMLError: It cannot be read.
    """
    with open_regular(path) as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ConfigError(
            f"{path} is larger than {MOST_BYTES >> 20} MiB, the limit of a configuration"
        )
    root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    count = 0 if root is None else _values(root)
    if count > MOST_VALUES:
        raise ConfigError(
            f"{path}: its anchors expand to {count:,} values, more than {MOST_VALUES:,}; "
            "write the values out, or refer to another key: ${actor_config.lr}"
        )
    return root


def _values(root: yaml.Node) -> int:
    """Return the number of values below a node; each use of an anchor counts."""
    counts: dict[int, int] = {}
    open_nodes, stack = set[int](), [root]
    while stack:
        node = stack[-1]
        below = _below(node)
        if id(node) not in open_nodes:
            open_nodes.add(id(node))
            # An open node contains itself; the loader refuses that.
            stack += [each for each in below if id(each) not in open_nodes]
            continue
        stack.pop()
        counts[id(node)] = 1 + sum(counts.get(id(each), 0) for each in below)
    return counts[id(root)]


def _below(node: yaml.Node) -> list[yaml.Node]:
    match node:
        case yaml.SequenceNode():
            return [*node.value]
        case yaml.MappingNode():
            return [each for pair in node.value for each in pair]
    return []
