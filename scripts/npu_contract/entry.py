"""One name of another package that mindrl relies on, and what has to be found of it."""

from dataclasses import dataclass
from typing import Literal

from mindrl.platform.npu_versions import Pin

Kind = Literal[
    "module", "name", "operator", "format", "call", "variable", "setting",
    "entry point", "requirement", "import", "casts",
]  # fmt: skip
"""What has to be found of an entry:

- module: its file;
- name: the definition of a function, class, method or attribute, with the arguments;
- operator: the schema of an operator that is written in C++, with the arguments;
- format: the value, where the operator's own text describes the argument;
- call: a call of that function with these strings among its arguments;
- variable: an environment variable that the package reads, sets or at least documents;
- setting: an argument of Megatron's command line that the package reads;
- entry point: the group and the function in the package's metadata;
- requirement: the version that the package's metadata asks for;
- import: that importing a module, or calling a function, imports another one, which is why a
  patch is there;
- casts: the functions that convert weights to a format, and no others.
"""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One name of a package that mindrl's NPU code relies on."""

    pin: Pin
    kind: Kind
    name: str
    used_by: str
    """The file of mindrl that needs it."""
    arguments: tuple[str, ...] = ()
    """Of a name or an operator: those that mindrl passes."""
    passed_on_to: str = ""
    """Of a name that takes any argument: the class that has those it does not have itself."""
    values: tuple[str, ...] = ()
    """What else has to be found; see `Kind`."""
    spelled: str = ""
    """What stands in `used_by` where that is not the last part of the name."""
