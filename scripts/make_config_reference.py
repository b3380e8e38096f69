"""Write docs/reference/config.md from the configuration dataclasses, or check that it is current.

The entry of a field is its name, its type in words, its default and the text below it in the
source. So the test finds a field without a text, and a page that was edited by hand. An
entry that an earlier section has is a reference to that section.
"""

import json
import sys
import types
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from generated_page import REFERENCE, write_or_check
from pydantic.fields import FieldInfo

from mindrl.config.load import sections
from mindrl.config.run import RunConfig
from mindrl.config.section import LARGEST, documented_fields

PAGE = REFERENCE / "config.md"

HEADER = """\
# Configuration

<!-- Written by scripts/make_config_reference.py from mindrl/config/. Do not edit. -->

Every key of a run, with its type, its default and its meaning. A configuration file in `configs/`
contains only differences from the defaults; any key can be overridden on the command line as
`section.key=value`. An unknown key, a wrong type or a value out of range is refused before
anything starts, with exit code 2. "Required" means that there is no default. The maximum of a whole
number is 2147483647 unless another one is given.

[Before Ray starts](../explanation/architecture.md#before-ray-starts) lists the rules between keys;
[Change one thing](../tutorials/first-run.md#change-one-thing) shows overrides.
"""


_WORDS = {bool: "`true` or `false`", int: "whole number", float: "number", str: "text"}


def type_in_words(annotation: Any, limits: Sequence[Any] = ()) -> str:
    """Describe a type with its range or its allowed values."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_in_words(arguments[0], limits_of(arguments[1:]))
    if origin is Literal:
        values = [f"`{plain(value)}`" for value in arguments]
        return f"only {values[0]}" if len(values) == 1 else "one of " + ", ".join(values)
    if origin in (Union, types.UnionType):
        words = [type_in_words(each) for each in arguments if each is not type(None)]
        return ", or ".join([*words, "`null`"] if type(None) in arguments else words)
    if origin is tuple:
        return f"list, each entry a {type_in_words(arguments[0])}"
    if origin is dict:
        return "section with any keys"
    return " ".join([_WORDS[annotation], *range_in_words(limits)])


def limits_of(metadata: Sequence[Any]) -> list[Any]:
    """Return the bounds of a type in `Annotated`."""
    limits: list[Any] = []
    for each in metadata:
        limits += each.metadata if isinstance(each, FieldInfo) else [each]
    return limits


def range_in_words(limits: Sequence[Any]) -> Iterator[str]:
    """Describe bounds, such as `>= 1` or `> 0 and < 1`."""
    bounds = []
    for limit in limits:
        match limit:
            case Ge(ge=bound):
                bounds.append(f">= {bound:.10g}")
            case Gt(gt=bound):
                bounds.append(f"> {bound:.10g}")
            case Le(le=bound) if bound != LARGEST:
                bounds.append(f"<= {bound:.10g}")
            case Lt(lt=bound):
                bounds.append(f"< {bound:.10g}")
    if bounds:
        yield " and ".join(bounds)


def plain(value: Any) -> str:
    """Format a value as in a configuration file."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-")
    return json.dumps(value)


def default_in_words(field: FieldInfo) -> str:
    """Format the default of a field."""
    if field.is_required():
        return "required"
    return f"`{plain(field.default)}`"


def row(name: str, field: FieldInfo) -> str:
    """Return one field as a line of a Markdown table."""
    if not field.description:
        raise ValueError(f"{name} has no text below it in mindrl/config/; add its meaning there")
    meaning = " ".join(field.description.split()).replace("None", "`null`")
    cells = [
        f"`{name}`",
        type_in_words(field.annotation, field.metadata),
        default_in_words(field),
        meaning,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table(key: str, section: type, written: dict[str, str]) -> str:
    """Lay out one dataclass: its text, then its fields; nested sections follow on their own.

    Args:
        key: Dotted name of the section.
        section: Its dataclass.
        written: Section of each row on the page so far; extended by this one.
    """
    within = [path[0] for path in sections(section) if len(path) == 1]
    lines = [f"## {key}", "", cleandoc(section.__doc__ or ""), ""]
    fields = documented_fields(section)
    rows = {name: row(name, field) for name, field in fields.items() if name not in within}
    if own := [line for line in rows.values() if line not in written]:
        lines += ["| Key | Type | Default | Meaning |", "| --- | --- | --- | --- |", *own, ""]
    for first in dict.fromkeys(written[line] for line in rows.values() if line in written):
        names = [f"`{name}`" for name, line in rows.items() if written.get(line) == first]
        lines += [f"As in [{first}](#{anchor(first)}): {', '.join(names)}.", ""]
    written.update({line: key for line in rows.values() if line not in written})
    if within:
        links = [f"[{key}.{name}](#{anchor(f'{key}.{name}')})" for name in within]
        lines += [f"Nested sections: {', '.join(links)}.", ""]
    return "\n".join(lines)


def anchor(heading: str) -> str:
    """Return the fragment of a heading with dotted names."""
    return heading.replace(".", "").lower()


def page() -> str:
    """Return the whole page."""
    found = {".".join(path): section for path, section in sections(RunConfig).items() if path}
    written: dict[str, str] = {}
    return "\n".join([HEADER, *(table(key, section, written) for key, section in found.items())])


if __name__ == "__main__":
    about = (__doc__ or "").split("\n\n", maxsplit=1)[0]
    sys.exit(write_or_check(PAGE, page(), source="mindrl/config/", description=about))
