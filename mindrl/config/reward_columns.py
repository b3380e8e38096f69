"""What the reward functions of a run take of the rows of its data."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mindrl.config.own_functions import named_object
from mindrl.config.reward_signature import RewardSignature, made_by, signature_of
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RewardColumns:
    """Columns that may be asked for; those that a file lacks are no matter here."""

    names: frozenset[str] | None = frozenset()
    """None: each that there is."""
    takes_chat: bool = False


def reward_kwargs(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Return the arguments of the reward functions that have some."""
    rl = config.rl_config
    pairs = [*zip(rl.verifier_function, rl.verifier_kwargs, strict=False)]
    for each in config.data_config.rewards:
        pairs += zip(each.verifier_function, each.verifier_kwargs, strict=False)
    return {name: kwargs for name, kwargs in pairs if kwargs}


def own_rewards(config: RunConfig) -> Iterator[tuple[str, str, RewardSignature]]:
    """Yield source, name and signature of each reward function of the user's.

    Raises:
        ConfigError: One cannot be imported, or is none.
    """
    given = reward_kwargs(config)
    for source, weights in config.reward_weights.items():
        field = config.reward_key(source)
        for name in weights:
            if ":" in name and "://" not in name:
                yield source, name, own_signature(field, name, given.get(name, {}))


def own_signature(field: str, name: str, given: dict[str, object]) -> RewardSignature:
    """Return the signature of a reward function of the user's; of a factory, of what it makes.

    Raises:
        ConfigError: It cannot be imported or made, or is none.
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
    """Return what a factory makes of its arguments, as `made_by`.

    Raises:
        ConfigError: The factory raises.
    """
    try:
        return made_by(found, given)
    except Exception as error:
        raise ConfigError(
            f"{field}={name!r} cannot be made with {dict(given)}: {type(error).__name__}: {error}"
        ) from error


def reward_columns(config: RunConfig) -> RewardColumns:
    """Say what the reward functions of a run may ask of a row.

    Raises:
        ConfigError: One cannot be imported, or is none.
    """
    if not config.rolls_out:
        return RewardColumns()
    signatures = [signature for _, _, signature in own_rewards(config)]
    sets = [signature.columns for signature in signatures]
    return RewardColumns(
        names=None if None in sets else frozenset().union(*(each for each in sets if each)),
        takes_chat=any(each.takes_chat for each in signatures),
    )
