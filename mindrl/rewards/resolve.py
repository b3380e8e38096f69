"""From the name of a reward in a configuration to the function."""

import contextlib
import inspect
from collections.abc import Callable
from typing import cast

from mindrl.config.own_functions import named_function
from mindrl.errors import ConfigError
from mindrl.observability.units import quoted
from mindrl.rewards.functions import BUILTIN_REWARDS, RewardFunction, score_range

FIELD = "rl_config.verifier_function"


def resolve_reward(name: str, field: str = FIELD) -> RewardFunction:
    """Return a builtin reward, `package.module:function` or `path/to/file.py:function`.

    `field` is that of the configuration, for errors.

    Raises:
        ConfigError: unknown name, failed import, missing attribute, or not a plain
            callable of two arguments; or its `score_range` is none.
    """
    found = named_function(field, name, BUILTIN_REWARDS, "reward")
    if fault := _fault(found):
        raise ConfigError(f"{field}={name!r} ({place_of(found)}) {fault}")
    return cast(RewardFunction, found)


def place_of(function: Callable[..., object]) -> str:
    """Return file and line of what is called, or the function itself where it has no source."""
    plain = inspect.unwrap(function)
    for source in (plain, type(plain).__call__):
        with contextlib.suppress(TypeError, OSError):
            return f"{inspect.getsourcefile(source)}:{inspect.getsourcelines(source)[1]}"
    return quoted(function)


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
