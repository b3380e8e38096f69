"""What all configuration sections have in common."""

from pydantic import ConfigDict
from pydantic.fields import FieldInfo

SECTION = ConfigDict(
    extra="forbid",
    strict=True,
    use_attribute_docstrings=True,
    allow_inf_nan=False,
)
"""Unknown keys and wrong types are refused; the text under a field documents it."""


def documented_fields(section: type) -> dict[str, FieldInfo]:
    """Return the fields of a section by name, each from the class that has the text under it.

    The section's own come first, then those that it inherits.
    """
    found: dict[str, FieldInfo] = {}
    for owner in section.__mro__:
        stated = vars(owner).get("__pydantic_fields__", {})
        own = vars(owner).get("__annotations__", {})
        found |= {name: stated[name] for name in own if name in stated and name not in found}
    return found
