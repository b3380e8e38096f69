"""Functions that a configuration names: builtins, and user functions in a package or a file."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic_core import PydanticCustomError

from mindrl.config.finding import did_you_mean
from mindrl.config.section import is_path
from mindrl.errors import ConfigError
from mindrl.observability.units import quoted


def named_function(field: str, name: str, builtins: Mapping[str, Any], kind: str) -> Any:
    """Return the function of a name: a builtin, or an attribute of a module or file.

    Args:
        field: Configuration key, for errors.
        name: Value of the key.
        builtins: Builtins by name.
        kind: What a builtin is called, such as `reward`.

    Raises:
        ConfigError: Unknown name, failed import, missing attribute, or an object that is not
            callable.
    """
    if name in builtins:
        return builtins[name]
    if ":" not in name:
        raise ConfigError(
            f"{field}={quoted(name)} is not a built-in {kind}; built-ins: "
            f"{', '.join(builtins)}; your own: 'package.module:function' or "
            f"'path/to/file.py:function'{did_you_mean(name, builtins, cutoff=0.5)}"
        )
    found = named_object(field, name)
    if not callable(found):
        raise ConfigError(
            f"{field}={name!r} is {quoted(found)} of type {type(found).__name__}; need a function"
        )
    return found


def named_object(field: str, name: str) -> object:
    """Return the object named `package.module:name` or `path/to/file.py:name`.

    The name may be an attribute of an object or class, such as `judge.score`.

    Raises:
        ConfigError: Malformed name, failed import, missing attribute, or a method without object.
    """
    place, separator, attribute = name.rpartition(":")
    if not separator:
        need = "must be 'package.module:name' or 'path/to/file.py:name'"
        raise ConfigError(f"{field}={quoted(name)} {need}")
    module = _imported(field, name, place)
    holder: object = module
    found: object = module
    for part in attribute.split("."):
        holder = found
        if part not in dir(holder):
            hint = did_you_mean(part, dir(holder))
            where = module.__file__ if holder is module else quoted(holder)
            raise ConfigError(f"{field}={name!r}: {where} has no {part!r}{hint}")
        found = getattr(holder, part)
    if inspect.isclass(holder) and inspect.isfunction(inspect.getattr_static(holder, part)):
        owner = attribute.rpartition(".")[0]
        raise ConfigError(
            f"{field}={name!r} is a method and needs an object; add `made = {owner}()` to "
            f"the file and write '{place}:made.{part}', or give {owner} a __call__ and "
            f"write '{place}:{owner}'"
        )
    return found


def being_imported() -> str | None:
    """Return the module or file that is being imported for a user function; None otherwise."""
    return _importing[-1] if _importing else None


_importing: list[str] = []


@contextmanager
def trial(field: str, name: str, called_with: str) -> Iterator[None]:
    """Convert what a user function raises in the body to a ConfigError.

    Raises:
        ConfigError: The body raised an exception.
    """
    try:
        yield
    except Exception as error:
        raise ConfigError(
            f"{field}={name!r} raised {type(error).__name__} when called with "
            f"{called_with}: {error}"
        ) from error


def _imported(field: str, name: str, place: str) -> ModuleType:
    shown, path = f"module {place!r}", None
    try:
        is_path(place)
    except PydanticCustomError as error:
        raise ConfigError(f"{field}={quoted(name)} {error.message()}") from error
    if place.endswith(".py"):
        path = Path(place).expanduser().resolve()
        if not path.is_file():
            raise ConfigError(f"{field}={name!r}: no file at {path}")
        shown = f"file {path}"
    _importing.append(shown)
    try:
        return importlib.import_module(place) if path is None else _executed(path)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{field}={name!r}: cannot import {shown}: {type(error).__name__}: "
            f"{error}{_import_hint(path, error)}"
        ) from error
    finally:
        _importing.pop()


def _import_hint(path: Path | None, error: BaseException) -> str:
    """Return how to make a missing module importable that is next to the file; else empty."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if path is None or not missing:
        return ""
    first = missing.partition(".")[0]
    candidates = [path.with_name(f"{first}.py"), path.with_name(first)]
    if not any(each.exists() for each in candidates):
        return ""
    return f"; {first} is in the same folder: set PYTHONPATH={path.parent}"


def _executed(path: Path) -> ModuleType:
    """Import a file under a unique name, so that two `rewards.py` do not collide.

    A file that has not changed since its last import is not executed again.
    """
    digest = hashlib.sha256(bytes(path) + str(path.stat().st_mtime_ns).encode()).hexdigest()[:12]
    module_name = f"mindrl_own_{path.stem}_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look the module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
