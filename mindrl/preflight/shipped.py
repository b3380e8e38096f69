"""What comes with mindrl besides its code: configurations, and the sizes of well-known models."""

from pathlib import Path

from mindrl.checkpoint.any_family import read_any_description
from mindrl.config.finding import Finding, once
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.models.description import ModelDescription, read_description
from mindrl.observability.terminal import note

_CHECKOUT = Path(__file__).resolve().parents[2]
_PACKAGE = Path(__file__).resolve().parents[1]


def config_folder() -> Path:
    """Return the configurations of the checkout, else of the working folder, else of the wheel."""
    places = (_CHECKOUT / "configs", Path("configs").resolve(), _PACKAGE / "configs")
    return next((place for place in places if (place / "program.yaml").is_file()), places[-1])


def _here_or_shipped(path: str) -> str:
    """Return a path as it is, or, where no folder is there, the shipped one of the same name.

    That of `./models/Qwen2.5-7B` has config.json alone.
    """
    known = config_folder() / "models" / Path(path).name
    is_shipped = not Path(path).is_dir() and (known / "config.json").is_file()
    return str(known) if is_shipped else path


def planned_description(path: str, *, any_family: bool = False) -> ModelDescription:
    """Read the sizes of a model that is planned, not run: its folder may be elsewhere.

    Raises:
        ModelError: It does not hold a known model, or there is none and the name is not known.
    """
    read = read_any_description if any_family else read_description
    return read(_here_or_shipped(path), to_plan=True)


def takes_any_family(config: RunConfig, role: Role) -> bool:
    """Say whether a role's model may be of a family that mindrl has no network of."""
    engines = {config.training_backend(each) for each in config.roles}
    return engines == {"fsdp"} and role in ("actor", "ref")


def sizes_path(config: RunConfig, role: Role) -> str:
    """Return what has the sizes of a role's model: its folder, where that is here.

    Else it is what `actor_config.sizes` names, or the shipped folder of the same name. Where none
    is there, the model's folder is returned as it is.
    """
    path = config.model_path(role)
    own = config.actor_config.sizes
    if own is not None and path == config.actor_config.load and not has_sizes(path):
        path = own
    return _here_or_shipped(path)


def has_sizes(path: str) -> bool:
    """Tell a config.json, or a folder with one."""
    return Path(path).is_file() or (Path(path) / "config.json").is_file()


def unknown_sizes(config: RunConfig) -> list[Finding]:
    """Say of which models nothing is known, so that neither a check nor a plan can judge them."""
    found = []
    for role in config.roles:
        if not Path(sizes_path(config, role)).exists():
            key, path = config.model_key(role), config.model_path(role)
            is_actor = path == config.actor_config.load
            way = "name it with actor_config.sizes" if is_actor else "put it there"
            text = (
                f"{key}={path}: not here, and no sizes of that name are shipped, so the model is "
                f"not checked and cannot be planned; its config.json says them: {way}"
            )
            found.append(Finding(text, key, path))
    return once(found)


def shipped_sizes(config: RunConfig) -> dict[str, str]:
    """Say of which model folders, not here, the sizes are read from elsewhere.

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
    """Tell a person of `shipped_sizes`, one note a folder."""
    for folder, shipped in shipped_sizes(config).items():
        note(f"{folder} is not here: sizes of {shipped}")
