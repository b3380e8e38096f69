"""Data shipped with mindrl: configurations, and the sizes of well-known models."""

from dataclasses import dataclass
from pathlib import Path

from mindrl.checkpoint.any_family import read_any_description, read_seeing_description
from mindrl.config.backends import TRAINING_BACKEND, TrainingBackend
from mindrl.config.finding import Finding, did_you_mean, once
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.errors import ModelError
from mindrl.models.description import ModelDescription, read_description
from mindrl.models.own_family import own_description
from mindrl.observability.terminal import note


@dataclass(frozen=True, kw_only=True)
class Families:
    """Allowed families of a model besides those with a network in mindrl."""

    specs: tuple[str, ...] | None = None
    """Places of the user's own specs, before the installed ones; None uses no specs."""
    takes_towers: bool = False
    """Whether a vision tower is allowed next to a decoder of mindrl."""
    takes_any: bool = False
    """Whether any family of transformers is allowed."""


KNOWN = Families()
_CHECKOUT = Path(__file__).resolve().parents[2]
_PACKAGE = Path(__file__).resolve().parents[1]


def config_folder() -> Path:
    """Return the configurations of the checkout, working folder or wheel, in this order."""
    places = (_CHECKOUT / "configs", Path("configs").resolve(), _PACKAGE / "configs")
    return next((place for place in places if (place / "program.yaml").is_file()), places[-1])


def _here_or_shipped(path: str) -> str:
    """Return a path unchanged, or the shipped folder of the same name if it does not exist.

    For `./models/Qwen2.5-7B` that has only config.json.
    """
    known = config_folder() / "models" / Path(path).name
    is_shipped = not Path(path).is_dir() and (known / "config.json").is_file()
    return str(known) if is_shipped else path


def planned_description(path: str, families: Families = KNOWN) -> ModelDescription:
    """Read the sizes of a model for planning only: its folder may be on another machine.

    Raises:
        ConfigError: The spec of a user's own model cannot be loaded.
        ModelError: It contains no known model, or does not exist and the name is unknown.
    """
    return description_of(_here_or_shipped(path), families, to_plan=True)


def named_description(named: str, families: Families = KNOWN) -> ModelDescription:
    """Return `planned_description`; its error for a missing folder lists the well-known names."""
    try:
        return planned_description(named, families)
    except ModelError as error:
        if Path(named).exists():
            raise
        names = sorted(each.name for each in (config_folder() / "models").iterdir())
        hint = did_you_mean(Path(named).name, names) or ";"
        raise ModelError(f"{error}{hint} known names: {', '.join(names)}") from error


def description_of(path: str, families: Families, *, to_plan: bool = False) -> ModelDescription:
    """Read the description of a model, by the user's own spec if there is one.

    Raises:
        ConfigError: As `planned_description`.
        ModelError: As `planned_description`; unless only planned, also for unsupported models.
    """
    own = None if families.specs is None else own_description(path, families.specs)
    if own is not None:
        return own
    read = read_seeing_description if families.takes_towers else read_description
    return (read_any_description if families.takes_any else read)(path, to_plan=to_plan)


def families_without_a_run(engine: TrainingBackend) -> Families:
    """Return the allowed families without a configuration: only installed specs."""
    is_megatron = engine == TRAINING_BACKEND
    specs = None if is_megatron else ()
    return Families(specs=specs, takes_towers=not is_megatron, takes_any=engine == "fsdp")


def families_of(config: RunConfig, role: Role) -> Families:
    """Return the allowed families of a role's model."""
    is_megatron = config.training_backend(role) == TRAINING_BACKEND
    return Families(
        specs=None if is_megatron else config.megatron_training.own_models,
        takes_towers=not is_megatron,
        takes_any=takes_any_family(config),
    )


def takes_any_family(config: RunConfig) -> bool:
    """Return whether models may be of families without a network in mindrl."""
    engines = {config.training_backend(each) for each in config.roles}
    return engines == {"fsdp"}


def sizes_path(config: RunConfig, role: Role) -> str:
    """Return the folder with the sizes of a role's model: its own, if it exists.

    Otherwise it is `actor_config.sizes`, or the shipped folder of the same name. If none exists,
    the model's folder is returned.
    """
    path = config.model_path(role)
    own = config.actor_config.sizes
    if own is not None and path == config.actor_config.load and not has_sizes(path):
        path = own
    return _here_or_shipped(path)


def draft_description(config: RunConfig) -> ModelDescription | None:
    """Read the sizes of the model that drafts for the engine; None if none does.

    Raises as `planned_description`.
    """
    drafts = config.generate_config.speculative_config
    folder = drafts.model if drafts.method == "draft_model" else None
    return None if folder is None else planned_description(folder)


def has_sizes(path: str) -> bool:
    """Return whether a path is a config.json, or a folder with one."""
    return Path(path).is_file() or (Path(path) / "config.json").is_file()


def unknown_sizes(config: RunConfig) -> list[Finding]:
    """Return findings for models of unknown sizes, which can be neither checked nor planned."""
    found = []
    for role in config.roles:
        if not Path(sizes_path(config, role)).exists():
            key, path = config.model_key(role), config.model_path(role)
            is_actor = path == config.actor_config.load
            way = "name it in actor_config.sizes" if is_actor else "put it there"
            text = (
                f"{key}={path}: not found, and no shipped sizes have this name, so the "
                f"model is not checked or planned; provide its config.json: {way}"
            )
            found.append(Finding(text, key, path))
    return once(found)


def shipped_sizes(config: RunConfig) -> dict[str, str]:
    """Return the missing model folders whose sizes are read from elsewhere.

    Returns:
        For example `{"./models/Qwen2.5-7B": "configs/models/Qwen2.5-7B"}`.
    """
    known = {config.model_path(role): Path(sizes_path(config, role)) for role in config.roles}
    shipped = config_folder() / "models"
    return {
        folder: f"configs/models/{path.name}" if path.parent == shipped else str(path)
        for folder, path in known.items()
        if path != Path(folder)
    }


def note_shipped_sizes(config: RunConfig) -> None:
    """Print a note for each folder in `shipped_sizes`."""
    for folder, shipped in shipped_sizes(config).items():
        note(f"{folder} not found; using the sizes of {shipped}")
