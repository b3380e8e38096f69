"""Columns of the data that the reward functions of a run use."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mindrl.config.own_functions import named_object
from mindrl.config.reward_signature import RewardSignature, made_by, signature_of
from mindrl.errors import ConfigError

if TYPE_CHECKING:
    # Each scoring process imports this module, and the sections take half of its start.
    from mindrl.config.run import RunConfig


@dataclass(frozen=True, kw_only=True)
class RewardColumns:
    """Columns that reward functions may use; a file need not have all of them."""

    names: frozenset[str] | None = frozenset()
    """None: all existing columns."""
    takes_chat: bool = False


def reward_kwargs(config: "RunConfig") -> dict[str, dict[str, Any]]:
    """Return the arguments that the configuration gives, by reward function."""
    rl = config.rl_config
    pairs = [*zip(rl.verifier_function, rl.verifier_kwargs, strict=False)]
    for each in config.data_config.rewards:
        pairs += zip(each.verifier_function, each.verifier_kwargs, strict=False)
    return {name: kwargs for name, kwargs in pairs if kwargs}


def own_rewards(config: "RunConfig") -> Iterator[tuple[str, str, RewardSignature]]:
    """Yield source, name and signature of each user-defined reward function.

    Raises:
        ConfigError: A function cannot be imported, or is not a reward function.
    """
    given = reward_kwargs(config)
    for source, weights in config.reward_weights.items():
        field = config.reward_key(source)
        for name in weights:
            if ":" in name and "://" not in name:
                yield source, name, own_signature(field, name, given.get(name, {}))


def own_signature(field: str, name: str, given: dict[str, object]) -> RewardSignature:
    """Return the signature of a user-defined reward function; for a factory, of its result.

    Raises:
        ConfigError: It cannot be imported or created, or is not a reward function.
    """
    found = named_object(field, name)
    made = made_reward(field, name, found, given) if callable(found) else None
    try:
        return signature_of(found, given) if made is None else signature_of(made)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{field}={name!r} {error}") from error


def made_reward(
    field: str, name: str, found: Callable[..., object], given: Mapping[str, object]
) -> Callable[..., object] | None:
    """Return the reward that a factory creates from its arguments, as `made_by`.

    Raises:
        ConfigError: The factory raises.
    """
    try:
        return made_by(found, given)
    except Exception as error:
        raise ConfigError(
            f"{field}={name!r} cannot be created with {dict(given)}: "
            f"{type(error).__name__}: {error}"
        ) from error


def reads_turns(config: "RunConfig") -> bool:
    """Return whether a run has conversations; those of a train job are held by rollout jobs."""
    has_some = config.rolls_out or config.spool_config.job is not None
    return config.environment_config is not None and has_some


def reward_columns(config: "RunConfig") -> RewardColumns:
    """Return the columns that the reward functions of a run may use; environments get all.

    Raises:
        ConfigError: A function cannot be imported, or is not a reward function.
    """
    if reads_turns(config):
        return RewardColumns(names=None, takes_chat=True)
    if not config.rolls_out:
        return RewardColumns()
    signatures = [signature for _, _, signature in own_rewards(config)]
    sets = [signature.columns for signature in signatures]
    return RewardColumns(
        names=None if None in sets else frozenset().union(*(each for each in sets if each)),
        takes_chat=any(each.takes_chat for each in signatures),
    )
