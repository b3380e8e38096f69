"""Resolves `MODEL_OR_RUN` on a command line: the folder of a model or of a run."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mindrl.errors import ConfigError
from mindrl.observability.regular_files import read_regular_text


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """A model that exists."""

    folder: Path
    run: Path | None
    """Folder of the run that exported it; None if a model's folder was given."""

    @property
    def name(self) -> str:
        """Display name of the model among several."""
        return self.folder.name if self.run is None else "/".join(self.run.parts[-2:])

    @property
    def hydra(self) -> str | None:
        """Folder of the run's configuration, which is called `config`."""
        return None if self.run is None else str(self.run / ".hydra")

    @property
    def step(self) -> int:
        """Training step of its weights; 0 if no run exported it."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            text = read_regular_text(self.folder / "mindrl_export.json")
            return int(json.loads(text)["step"])
        return 0


def named_model(text: str, *, best: bool = False) -> NamedModel:
    """Return the model in a folder, or the newest or best model that a run exported.

    Raises:
        ConfigError: No model is found.
    """
    folder = Path(text).resolve()
    is_run = (folder / ".hydra" / "config.yaml").is_file()
    model = folder / ("model_best" if best else "model") if is_run else folder
    if not (model / "config.json").is_file():
        raise ConfigError(
            f"MODEL_OR_RUN {text}: {model} has no config.json; name the folder of a model or of a "
            "run with an exported model"
        )
    if best and not is_run:
        raise ConfigError(f"--best: {text} is the folder of a model; name the folder of a run")
    return NamedModel(folder=model, run=folder if is_run else None)
