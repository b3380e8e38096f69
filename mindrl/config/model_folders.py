"""Configuration keys of the folders of models, of which a role may have several."""

from typing import get_args

from mindrl.config.layout_keys import Role
from mindrl.config.run import OTHER_REFERENCE, RunConfig


def folder_keys(config: RunConfig) -> tuple[str, ...]:
    """Return the keys of the folders of all models, given or not."""
    models = () if config.teacher_config is None else config.teacher_config.models
    teachers = (f"teacher_config.models.{place}.load" for place in range(len(models)))
    return (*(f"{role}_config.load" for role in get_args(Role)), *teachers, OTHER_REFERENCE)


def further_models(config: RunConfig, role: Role) -> dict[str, str]:
    """Return the key of each folder with a model that takes turns with a role's first one.

    Each folder once, in the order of `TeacherConfig.folders`.
    """
    teacher = config.teacher_config if role == "teacher" else None
    if teacher is None:
        return {}
    given = [each.load for each in teacher.models]
    return {
        folder: f"teacher_config.models.{given.index(folder)}.load"
        for folder in teacher.folders[1:]
    }
