"""Resolve the name of a reward in a configuration to its function."""

import contextlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from typing import Any, cast

from mindrl.config.own_functions import named_function
from mindrl.config.reward_columns import made_reward
from mindrl.config.reward_signature import RewardSignature, signature_of
from mindrl.errors import ConfigError
from mindrl.observability.units import quoted
from mindrl.rewards.functions import BUILTIN_REWARDS, score_range
from mindrl.rewards.remote import SCHEMES, RemoteReward

FIELD = "rl_config.verifier_function"
_NOTHING: Mapping[str, Any] = {}


def resolve_reward(
    name: str, field: str = FIELD, kwargs: Mapping[str, Any] = _NOTHING
) -> Callable[..., object]:
    """Return a builtin reward, `package.module:function`, `path/to/file.py:function` or a server.

    A class is instantiated with `kwargs`, a function is called with them each time, and a factory
    of a reward is called with them once. `field` is the configuration key, for errors.

    Raises:
        ConfigError: as `check_reward`; or a class cannot be instantiated.
    """
    found, kwargs = _checked(name, field, kwargs)
    if inspect.isclass(found):
        at = (name,) if name.startswith(SCHEMES) else ()
        try:
            return cast(Callable[..., object], found(*at, **kwargs))
        except Exception as error:
            raise ConfigError(
                f"{_source_text(field, name, found)} cannot be created with {dict(kwargs)}: "
                f"{type(error).__name__}: {error}"
            ) from error
    return update_wrapper(partial(found, **kwargs), found) if kwargs else found


def check_reward(
    name: str, field: str = FIELD, kwargs: Mapping[str, Any] = _NOTHING
) -> Callable[..., object]:
    """Return the object of a name; it is called only if it creates the reward from `kwargs`.

    Raises:
        ConfigError: unknown name, failed import, missing attribute, or not a callable that accepts
            a response and its arguments; or its `score_range` is invalid.
    """
    return _checked(name, field, kwargs)[0]


def _checked(
    name: str, field: str, kwargs: Mapping[str, Any]
) -> tuple[Callable[..., object], Mapping[str, Any]]:
    """Return the object of a name, and the arguments that a factory has not taken already."""
    at = (name,) if name.startswith(SCHEMES) else ()
    found: Callable[..., object] = RemoteReward
    if not at:
        found = named_function(field, name, BUILTIN_REWARDS, "reward")
        if (made := made_reward(field, name, found, kwargs)) is not None:
            found, kwargs = made, _NOTHING
    try:
        signature_of(found, kwargs).bound(None)
        score_range(found)
    except ValueError as error:
        raise ConfigError(f"{_source_text(field, name, found)} {error}") from error
    try:
        if inspect.isclass(found):
            inspect.signature(found).bind(*at, **kwargs)
        elif kwargs:
            inspect.signature(found).bind_partial(**kwargs)
    except TypeError as error:
        key = field.replace("verifier_function", "verifier_kwargs")
        raise ConfigError(
            f"{key} of {name}: {dict(kwargs)} for {inspect.signature(found)}: {error}"
        ) from error
    return found, kwargs


def signature_of_reward(reward: Callable[..., object]) -> RewardSignature:
    """Return the parameters of a resolved reward, without those that it has been given."""
    if isinstance(reward, partial):
        return signature_of(reward.func, reward.keywords)
    return signature_of(reward)


def place_of(function: Callable[..., object]) -> str:
    """Return file and line of a callable, or its representation if it has no source."""
    plain = inspect.unwrap(function)
    for source in (plain, type(plain).__call__):
        with contextlib.suppress(TypeError, OSError):
            return f"{inspect.getsourcefile(source)}:{inspect.getsourcelines(source)[1]}"
    return quoted(function)


def _source_text(field: str, name: str, found: Callable[..., object]) -> str:
    return f"{field}={name!r} ({place_of(found)})"
