"""Write or check the types of the sections, mindrl/config/*section_types.py.

The types of the sections that `mindrl.train` takes as dictionaries: editors complete their keys,
and a type checker refuses one that is not there.
"""

import subprocess
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from generated_page import write_or_check

from mindrl.config.rl import RLConfig
from mindrl.config.run import RunConfig

CONFIG = Path(__file__).parents[1] / "mindrl" / "config"
TEXT = """\
Types of the sections that `mindrl.train` takes. Written by scripts/make_section_types.py.

docs/reference/config.md explains the keys.
"""


def main() -> int:
    """Write the files, or compare them, as the command line asks; returns the exit code."""
    about = "Write the types of the sections that mindrl.train takes."
    of_rl = dict.fromkeys(_needed(RLConfig))
    others = dict.fromkeys(each for each in _needed(RunConfig) if each not in of_rl)
    uses = "from mindrl.config.rl_section_types import RLKeys\n"
    return max(
        write_or_check(
            CONFIG / name, _file(sections, head), source="mindrl/config/", description=about
        )
        for name, sections, head in (
            ("rl_section_types.py", of_rl, ""),
            ("section_types.py", others, f"\n{uses}"),
        )
    )


def _file(sections: Iterable[type], head: str) -> str:
    """Return a formatted file with the classes of some sections."""
    body = "\n\n".join(map(_class, sections))
    names = [each for each in ("Mapping", "Sequence") if f"{each}[" in body]
    imports = (
        f"from collections.abc import {', '.join(names)}\nfrom typing import Literal, TypedDict"
    )
    text = f'"""{TEXT}"""\n\n{imports}\n{head}\n\n{body}\n'
    command = [
        sys.executable,
        "-m",
        "ruff",
        "format",
        "--stdin-filename",
        str(CONFIG / "x.py"),
        "-",
    ]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _needed(section: type) -> Iterator[type]:
    """Yield the sections that one names, those that it extends, and itself, in this order."""
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
    text = (
        '    """The sections of a run."""'
        if section is RunConfig
        else f'    """Keys of {section.__name__}."""'
    )
    return "\n".join(
        [f"class {_name(section)}({', '.join(bases)}, total=False):", text, "", *lines]
    )


def _name(section: type) -> str:
    return (
        "SectionArguments"
        if section is RunConfig
        else f"{section.__name__.removesuffix('Config')}Keys"
    )


def _spelled(hint: Any) -> str:
    """Spell a type as a caller may give it: a list in the place of a tuple."""
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
