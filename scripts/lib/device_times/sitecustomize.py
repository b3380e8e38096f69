"""Put on the path of a program, this makes named calls last as long as on a device.

Python imports a module of this name at each start. `MINDRL_BENCH_LEAST_SECONDS` is a JSON object:
seconds by call, `package.module:Class.method`. What such a call takes less is slept, in which the
process needs no core: sides of a run that have devices of their own then do not slow each other.
"""

import functools
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LEAST: dict[str, float] = json.loads(os.environ.get("MINDRL_BENCH_LEAST_SECONDS", "{}"))


def lasting(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Have a function return no sooner."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        end = time.perf_counter() + seconds
        found = function(*arguments, **named)
        time.sleep(max(0.0, end - time.perf_counter()))
        return found

    return call


class Finder(MetaPathFinder):
    """Finds the named modules as everybody does, and wraps what they define."""

    def __init__(self) -> None:
        self.wanted = {name.partition(":")[0] for name in LEAST}

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        """Answer for the first import of a named module."""
        if fullname not in self.wanted:
            return None
        self.wanted.remove(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for name, seconds in LEAST.items():
                place, _, path = name.partition(":")
                if place == fullname:
                    *above, last = path.split(".")
                    owner = functools.reduce(getattr, above, module)
                    setattr(owner, last, lasting(getattr(owner, last), seconds))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if LEAST:
    sys.meta_path.insert(0, Finder())
