"""Parts of a run that do not work with an actor that reads pictures."""

from collections.abc import Iterator, Mapping

from mindrl.config.finding import Finding, Value, broken
from mindrl.config.layout_keys import Role
from mindrl.config.preference import PreferenceConfig
from mindrl.config.run import RunConfig
from mindrl.models.description import ModelDescription


def vision_findings(config: RunConfig, models: Mapping[Role, ModelDescription]) -> list[Finding]:
    """Return findings about parts of a run that would not see the pictures of its rows."""
    actor = models.get("actor")
    if actor is None or not actor.reads_images:
        return [*_blind_actor(config, models)]
    return [*_sections(config), *_blind_roles(config, models)]


def _sections(config: RunConfig) -> Iterator[Finding]:
    need = "is not supported with a model that reads pictures; remove the section"
    for name in ("critic_config", "reward_config"):
        if config.value_of(name) is not None:
            yield Finding(f"{name} {need}", name)
    yield from _turns(config)
    section = config.preference_config
    if section is not None and section.trains_rewards:
        need = "trains a reward model, which is not supported with pictures"
        yield broken("preference_config.loss", section.loss, need, PreferenceConfig().loss)
    if config.spool_config.job is not None:
        need = "must be null with a model that reads pictures: records carry none"
        yield broken("spool_config.job", config.spool_config.job, need, None)
    if (url := config.value_of("teacher_config.url")) is not None:
        need = "must be null with a model that reads pictures: servers get none"
        yield broken("teacher_config.url", url, need, None)
    none: dict[str, Value] = {"servers": (), "servers_file": None}
    for name, off in none.items():
        if servers := getattr(config.generate_config, name):
            need = "cannot be given with a model that reads pictures: servers get none"
            yield broken(f"generate_config.{name}", servers, need, off)


def _turns(config: RunConfig) -> Iterator[Finding]:
    environment = config.environment_config
    if environment is None:
        return
    if environment.agent is not None:
        need = "must be null with a model that reads pictures: agents send text"
        yield broken("environment_config.agent", environment.agent, need, None)
    if environment.history != "kept":
        need = "must be kept with a model that reads pictures: a new rendering would lack them"
        yield broken("environment_config.history", environment.history, need, "kept")


def _blind_roles(config: RunConfig, models: Mapping[Role, ModelDescription]) -> Iterator[Finding]:
    for role, model in models.items():
        if not model.reads_images:
            key, path = config.model_key(role), config.model_path(role)
            need = "has no vision tower, and the actor has one: it would not see the pictures"
            yield broken(key, path, need, config.actor_config.load)


def _blind_actor(config: RunConfig, models: Mapping[Role, ModelDescription]) -> Iterator[Finding]:
    if config.actor_config.freeze_vision_tower and "actor" in models:
        need = "needs a vision tower, and actor_config.load names a model without one"
        yield broken("actor_config.freeze_vision_tower", True, need, False)
    for role, model in models.items():
        if model.reads_images and role != "actor":
            key, path = config.model_key(role), config.model_path(role)
            yield broken(key, path, "has a vision tower, and the actor has none")
