"""What all configuration sections have in common."""

from pydantic import ConfigDict

SECTION = ConfigDict(
    extra="forbid",
    strict=True,
    use_attribute_docstrings=True,
    allow_inf_nan=False,
)
"""Unknown keys and wrong types are refused; the text under a field documents it."""
