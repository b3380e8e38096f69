"""Common settings and types of the configuration sections."""

from dataclasses import fields
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

SECTION = ConfigDict(
    extra="forbid",
    strict=True,
    use_attribute_docstrings=True,
    allow_inf_nan=False,
)
"""Unknown keys and wrong types are refused; the docstring of a field documents it."""

LARGEST = (1 << 31) - 1
"""Maximum of integers: products of sizes in bytes stay within 64 bits."""
Count = Annotated[int, Field(ge=0, le=LARGEST)]
PositiveInt = Annotated[int, Field(ge=1, le=LARGEST)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Coefficient = Annotated[float, Field(ge=0.0, le=1e6)]
"""Coefficient of a term of a loss or a reward: squares and sums of larger ones exceed float32."""
Weight = Annotated[float, Field(ge=-1_000_000, le=1_000_000)]
"""The same, but may be negative."""
Positive = Annotated[float, Field(gt=0.0, le=1e6)]
Bound = Annotated[float, Field(gt=0.0, le=1e12)]
"""An upper bound; a very large one has no effect."""
SequenceCount = Annotated[int, Field(ge=1, le=1 << 20)]
"""Number of sequences or prompts of a batch."""
TokenCount = Annotated[int, Field(ge=1, le=1 << 24)]
Mib = Annotated[int, Field(ge=1, le=1 << 24)]
"""Up to 16 TiB."""
WEEK_SECONDS = 7 * 24 * 3600
"""Longest wait: after some weeks, clocks that count milliseconds in 32 bits overflow."""
Seconds = Annotated[int, Field(ge=1, le=WEEK_SECONDS)]

_LONGEST_PATH, _LONGEST_NAME = 4000, 240
"""In bytes. Linux allows 4095 and 255; temporary files have longer names."""


def is_path(text: str) -> str:
    """Refuse paths that no file system accepts."""
    path = text.encode()
    longest = max(map(len, path.split(b"/")))
    if "\0" in text:
        raise PydanticCustomError("path", "must be a path without a zero byte")
    if longest > _LONGEST_NAME or len(path) > _LONGEST_PATH:
        raise PydanticCustomError(
            "path",
            (
                "must be a path of at most {most} bytes with names of at most {name}; found "
                "{bytes}, with a name of {longest}"
            ),
            {"most": _LONGEST_PATH, "name": _LONGEST_NAME, "bytes": len(path), "longest": longest},
        )
    return text


PathText = Annotated[str, AfterValidator(is_path)]


def inherited_values(section: Any, base: type) -> dict[str, Any]:
    """Return the values that a section has for the keys of one of its base sections, by name."""
    return {each.name: getattr(section, each.name) for each in fields(base)}


def documented_fields(section: type) -> dict[str, FieldInfo]:
    """Return the fields of a section by name, each from the class with its docstring.

    The section's own fields come first, then the inherited ones.
    """
    found: dict[str, FieldInfo] = {}
    for owner in section.__mro__:
        stated = vars(owner).get("__pydantic_fields__", {})
        own = vars(owner).get("__annotations__", {})
        found |= {name: stated[name] for name in own if name in stated and name not in found}
    return found
