"""Write or check mindrl/config/section_types.pyi, the types of the sections.

These are the types of the sections that `mindrl.train` accepts as dictionaries: editors complete
their keys, and type checkers refuse unknown keys.
"""

import subprocess
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from generated_page import write_or_check

from mindrl.config.run import RunConfig

STUB = Path(__file__).parents[1] / "mindrl" / "config" / "section_types.pyi"
HEAD = """\
# Written by scripts/make_section_types.py; docs/reference/config.md explains the keys.

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict
"""


def main() -> int:
    """Write the stub, or compare it with `--check`; return the exit code."""
    return write_or_check(
        STUB,
        _stub(dict.fromkeys(_needed(RunConfig))),
        source="mindrl/config/",
        description="Write the types of the sections that mindrl.train accepts.",
    )


def _stub(sections: Iterable[type]) -> str:
    """Return the formatted classes of some sections."""
    text = "\n".join([HEAD, *map(_class, sections)])
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", STUB, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _needed(section: type) -> Iterator[type]:
    """Yield the sections in a section, those that it extends, and itself, in this order."""
    for base in section.__bases__:
        if is_dataclass(base):
            yield from _needed(base)
    for hint in get_type_hints(section).values():
        for kind in (hint, *get_args(hint)):
            if isinstance(kind, type) and is_dataclass(kind):
                yield from _needed(kind)
    yield section


def _class(section: type) -> str:
    bases = [_name(base) for base in section.__bases__ if is_dataclass(base)] or ["TypedDict"]
    hints = get_type_hints(section)
    lines = [
        f"    {name}: {_spelled(hints[name])}" for name in vars(section).get("__annotations__", {})
    ]
    return "\n".join([f"class {_name(section)}({', '.join(bases)}, total=False):", *lines, ""])


def _name(section: type) -> str:
    return (
        "SectionArguments"
        if section is RunConfig
        else f"{section.__name__.removesuffix('Config')}Keys"
    )


def _spelled(hint: Any) -> str:
    """Format a type for callers: a sequence instead of a tuple."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return " | ".join(map(_spelled, inner))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, inner))}]"
    if origin is tuple:
        return f"Sequence[{_spelled(inner[0])}]"
    if origin is dict:
        return "Mapping[str, object]"
    if hint is type(None):
        return "None"
    return _name(hint) if is_dataclass(hint) else str(hint.__name__)


if __name__ == "__main__":
    sys.exit(main())
