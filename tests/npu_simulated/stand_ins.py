"""Replacements for packages that cannot load here: torchvision, and fla_npu of delta nets."""

from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Anything(type):
    """A class that has every attribute: its name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Module(ModuleType):
    """A module, or a package, in which everything else is a class."""

    __version__ = "0.28.0"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class StandIns(MetaPathFinder, Loader):
    """Finds them."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name.split(".", maxsplit=1)[0] not in {"torchvision", "fla_npu"}:
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it was made."""
