"""What comes with mindrl besides its code: configurations, and the sizes of well-known models."""

from pathlib import Path

from mindrl.config.run import RunConfig
from mindrl.launch.exits import note
from mindrl.models.description import ModelDescription, read_description

_CHECKOUT = Path(__file__).resolve().parents[2]
_PACKAGE = Path(__file__).resolve().parents[1]


def config_folder() -> Path:
    """Return the configurations of the checkout, else of the working folder, else of the wheel."""
    places = (_CHECKOUT / "configs", Path("configs").resolve(), _PACKAGE / "configs")
    return next((place for place in places if (place / "program.yaml").is_file()), places[-1])


def published_folder(path: str) -> Path | None:
    """Return the shipped folder, with config.json alone, that bears the name of a model folder.

    Args:
        path: For example `./models/Qwen2.5-7B`, or just `Qwen2.5-7B`.

    Returns:
        None where the folder is here, or mindrl knows no model of that name.
    """
    if Path(path).is_dir():
        return None
    known = config_folder() / "models" / Path(path).name
    return known if (known / "config.json").is_file() else None


def sizes_folder(path: str) -> str:
    """Return the folder that has the sizes of a model: a shipped one where it is not here itself.

    Args:
        path: A model folder; returned as it is where neither is there.
    """
    return str(published_folder(path) or path)


def planned_description(path: str) -> ModelDescription:
    """Read the sizes of a model that is planned, not run: the folder need not be on this machine.

    Args:
        path: As of `sizes_folder`.

    Raises:
        ModelError: It does not hold a known model, or there is none and the name is not known.
    """
    return read_description(sizes_folder(path), to_plan=True)


def shipped_sizes(config: RunConfig) -> dict[str, str]:
    """Say of which model folders, not here, the sizes that are shipped would be read.

    Returns:
        For example `{"./models/Qwen2.5-7B": "configs/models/Qwen2.5-7B"}`.
    """
    folders = map(config.model_path, config.roles)
    known = {folder: published_folder(folder) for folder in folders}
    return {
        folder: f"configs/models/{shipped.name}"
        for folder, shipped in known.items()
        if shipped is not None
    }


def note_shipped_sizes(config: RunConfig) -> None:
    """Tell a person of `shipped_sizes`, one note a folder."""
    for folder, shipped in shipped_sizes(config).items():
        note(f"{folder} is not here: sizes of {shipped}")
