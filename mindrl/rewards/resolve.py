"""From the name of a reward in a configuration to the function."""

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

from mindrl.errors import ConfigError
from mindrl.rewards.functions import BUILTIN_REWARDS, RewardFunction, score_range
from mindrl.rewards.scores import quoted

FIELD = "rl_config.verifier_function"


def resolve_reward(name: str) -> RewardFunction:
    """Return a builtin reward, `package.module:function` or `path/to/file.py:function`.

    Raises:
        ConfigError: unknown name, failed import, missing attribute, or not a plain
            callable of two arguments; or its `score_range` is none.
    """
    if name in BUILTIN_REWARDS:
        return BUILTIN_REWARDS[name]
    place, separator, attribute = name.rpartition(":")
    if not separator:
        close = difflib.get_close_matches(name, BUILTIN_REWARDS, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(
            f"{FIELD}={name!r} is no builtin reward; {hint}builtins: {', '.join(BUILTIN_REWARDS)}; "
            "your own: 'package.module:function' or 'path/to/file.py:function'"
        )
    module = _imported(name, place)
    if attribute not in vars(module):
        close = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"{FIELD}={name!r}: {module.__file__} has no {attribute!r}{hint}")
    found: object = vars(module)[attribute]
    if not callable(found):
        raise ConfigError(
            f"{FIELD}={name!r} is {quoted(found)} of type {type(found).__name__}; need a function"
        )
    if fault := _fault(found):
        raise ConfigError(f"{FIELD}={name!r} ({place_of(found)}) {fault}")
    return cast(RewardFunction, found)


def place_of(function: Callable[..., object]) -> str:
    """Return file and line of what is called, or the function itself where it has no source."""
    plain = inspect.unwrap(function)
    for source in (plain, type(plain).__call__):
        with contextlib.suppress(TypeError, OSError):
            return f"{inspect.getsourcefile(source)}:{inspect.getsourcelines(source)[1]}"
    return quoted(function)


def _imported(name: str, place: str) -> ModuleType:
    shown, path = f"module {place!r}", None
    if place.endswith(".py"):
        path = Path(place).expanduser().resolve()
        if not path.is_file():
            raise ConfigError(f"{FIELD}={name!r}: no file at {path}")
        shown = f"file {path}"
    try:
        return importlib.import_module(place) if path is None else _executed(path)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{FIELD}={name!r}: {shown} does not import: {type(error).__name__}: {error}"
        ) from error


def _executed(path: Path) -> ModuleType:
    """Import a file under a name of its own, so that two `rewards.py` do not collide."""
    digest = hashlib.sha256(bytes(path)).hexdigest()[:12]
    module_name = f"mindrl_reward_{path.stem}_{digest}"
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


def _fault(found: Callable[..., object]) -> str | None:
    """Say what can be seen of a function, without a call, that keeps it from serving."""
    called = found if inspect.isroutine(found) else type(found).__call__
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        return "is asynchronous; need a plain `def` that returns the score"
    try:
        inspect.signature(found).bind("response", "reference")
    except TypeError as error:
        return (
            f"has the signature {inspect.signature(found)}; "
            f"need (response: str, reference: str) -> float: {error}"
        )
    except ValueError:
        pass  # a function written in C may have no signature; its calls are checked all the same
    try:
        score_range(found)
    except ValueError as error:
        return f"has {error}"
    return None
