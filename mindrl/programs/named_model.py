"""What `MODEL_OR_RUN` on a command line means: the folder of a model, or that of a run."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mindrl.errors import ConfigError
from mindrl.observability.regular_files import read_regular_text


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """A model that is there."""

    folder: Path
    run: Path | None
    """Folder of the run that has exported it; None where none was named."""

    @property
    def name(self) -> str:
        """What the model is called where it is one of several."""
        return self.folder.name if self.run is None else "/".join(self.run.parts[-2:])

    @property
    def hydra(self) -> str | None:
        """Folder of the configuration of the run, which is called `config`."""
        return None if self.run is None else str(self.run / ".hydra")

    @property
    def step(self) -> int:
        """The step whose weights it has; 0 where no run has exported it."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            text = read_regular_text(self.folder / "mindrl_export.json")
            return int(json.loads(text)["step"])
        return 0


def named_model(text: str, *, best: bool = False) -> NamedModel:
    """Find a model by its folder, or the newest one that a run exported, or the best one.

    Raises:
        ConfigError: There is none.
    """
    folder = Path(text).resolve()
    is_run = (folder / ".hydra" / "config.yaml").is_file()
    model = folder / ("model_best" if best else "model") if is_run else folder
    if not (model / "config.json").is_file():
        raise ConfigError(
            f"MODEL_OR_RUN {text}: {model} has no config.json; it must be the folder of a model, "
            "or of a run that has exported one"
        )
    if best and not is_run:
        raise ConfigError(f"--best: {text} is the folder of a model, and of no run")
    return NamedModel(folder=model, run=folder if is_run else None)
