"""The run folder of a training program: its lock and its stored configuration."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf

from mindrl.checkpoint.commits import CHECKPOINTS, Commits
from mindrl.errors import ConfigError
from mindrl.observability.output_files import output_errors
from mindrl.observability.run_lock import run_lock

HYDRA = ".hydra"
"""Subfolder of a run folder with the configuration that the run was started with."""
_BEFORE_THE_START = (".lock", ".owner.json", f"{HYDRA}/*", "data/*", "logs/driver.log")
"""Files that a run folder may have before its run starts."""
_BY_THE_TIME = "outputs/????-??-??/*"
"""A run folder that the user has not named."""


def require_checkpoint(option: str, folder: Path) -> None:
    """Check that a run to resume has a checkpoint; else it would start over and replace itself.

    Raises:
        ConfigError: The folder has none.
        CheckpointError: Its checkpoints cannot be listed.
    """
    if not Commits(folder / CHECKPOINTS).steps():
        raise ConfigError(
            f"{option} {folder}: its {CHECKPOINTS}/ has no checkpoint to resume from. Start a new "
            f"run instead, for example with --config-name {folder}/{HYDRA}/config.yaml"
        )


@contextmanager
def run_place(
    folder: Path,
    composition: DictConfig,
    overrides: Sequence[str],
    hydra: DictConfig | None = None,
) -> Iterator[None]:
    """Lock a run folder in the body, and write the files that `--resume` starts from.

    If the run is refused before it starts, the files are restored, and a folder that was empty is
    removed.

    Raises:
        OutputError: Another process has locked the folder, or it cannot be written.
    """
    place, summary = folder / HYDRA, folder / "summary.json"
    is_new = not folder.is_dir() or not any(folder.iterdir())
    with run_lock(folder):
        with output_errors(place):
            place.mkdir(exist_ok=True)
            before = {path: path.read_bytes() for path in place.glob("*.yaml") if path.is_file()}
        written = _time_of(summary)
        with output_errors(place):
            OmegaConf.save(composition, place / "config.yaml")
            (place / "overrides.yaml").write_text(yaml.safe_dump([*overrides]), encoding="utf-8")
            if hydra is not None:
                OmegaConf.save({"hydra": hydra}, place / "hydra.yaml")
        try:
            yield
        except BaseException as error:
            # A run that has started always writes its summary.
            has_started = _time_of(summary) != written
            for path, content in () if has_started else before.items():
                path.write_bytes(content)
            if is_new and not has_started and isinstance(error, ConfigError):
                _remove(folder)
            raise


def _remove(folder: Path) -> None:
    """Remove the folder of a refused run, unless it holds files of others."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    if not all(any(file.match(own) for own in _BEFORE_THE_START) for file in files):
        return
    shutil.rmtree(folder, ignore_errors=True)
    for parent in folder.parents[:2] if folder.match(_BY_THE_TIME) else ():
        # Other runs of the day may be there.
        with suppress(OSError):
            parent.rmdir()


def _time_of(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.is_file() else None
