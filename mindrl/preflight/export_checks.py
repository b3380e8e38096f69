"""Rules on the folders that a run exports its models to. One rule, one function."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from mindrl.config.finding import Finding, broken
from mindrl.config.run import RunConfig
from mindrl.observability.run_folder import best_folder

Exported = Literal["actor", "critic"]
Places = Mapping[Exported, str]
"""Folder of each model that the run exports."""


def export_places(config: RunConfig, run_folder: Path | None = None) -> Places:
    """Return where each model is exported to.

    Args:
        config: Of the run.
        run_folder: Holds what no key places; None leaves that out.
    """
    critic = config.critic_config
    saves: dict[Exported, tuple[str | None, str]] = {"actor": (config.actor_config.save, "model")}
    if critic is not None:
        saves["critic"] = (critic.save, "critic")
    if run_folder is None:
        return {role: save for role, (save, _) in saves.items() if save}
    return {role: save or str(run_folder / name) for role, (save, name) in saves.items()}


def export_findings(places: Places) -> Iterator[Finding]:
    """Say so where an export would replace files, or the other model."""
    for role, place in places.items():
        key = f"{role}_config.save"
        for folder in _written(role, place):
            if trouble := _trouble(folder):
                which = f": {folder} " if folder != Path(place).resolve() else ""
                yield broken(key, place, f"{which}{trouble}; name a new folder", None)
    if len(places) > 1:
        yield from _apart(places["actor"], places["critic"])


def _written(role: Exported, place: str) -> list[Path]:
    """Return the folders that a role writes: the actor's best model lies beside its newest."""
    folder = Path(place).resolve()
    return [folder, best_folder(folder)] if role == "actor" else [folder]


def _trouble(folder: Path) -> str | None:
    """Say what is there already; an export makes its folder, or takes an empty one."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not there.is_dir():
        return "is a file" if there == folder else f"cannot be made: {there} is a file"
    if there == folder and any(folder.iterdir()):
        return "holds files already, and an export would replace them"
    return None


def _apart(actor: str, critic: str) -> Iterator[Finding]:
    """Each export replaces its whole folder, with all that lies below it."""
    (theirs,) = _written("critic", critic)
    ours = _written("actor", actor)
    if any(each.is_relative_to(theirs) or theirs.is_relative_to(each) for each in ours):
        need = (
            f"beside actor_config.save={actor}: the export of one model would "
            "replace the other; name two folders of which neither lies in the other"
        )
        yield broken("critic_config.save", critic, need, None)
