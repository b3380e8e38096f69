"""The head of each role's model. Needs no torch."""

from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.models.decoder import Head


def role_head(config: RunConfig, role: Role) -> Head:
    """Return the head of a role's model."""
    given = config.preference_config
    is_value = role in ("critic", "reward") or (given is not None and given.trains_rewards)
    return "value" if is_value else "vocabulary"


def draws_head(config: RunConfig, role: Role) -> bool:
    """Return whether a role's head is drawn at random if its folder has none."""
    return role in ("actor", "critic") and role_head(config, role) == "value"
