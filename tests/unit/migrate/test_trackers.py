"""Import of trackers from MindSpeed-RL's and verl's files."""

from typing import Any

import pytest
from mindspeed_rl_files import imported, of

from mindrl.config.load import load_run_config
from mindrl.config.text import nested
from mindrl.config.tracking import Tracking
from mindrl.migrate.mapped import Import
from mindrl.migrate.verl import import_verl


def tracking(found: Import) -> Tracking:
    return load_run_config(nested(found.values)).rl_config.tracking


def test_trackers_of_mindspeed_rl_come_by_their_names_with_project_and_name() -> None:
    keys: dict[str, Any] = {
        "rl_config.use_wandb": True,
        "rl_config.use_tensorboard": True,
        "rl_config.wandb_project": "maths",
        "rl_config.wandb_exp_name": "first",
        "rl_config.wandb_save_dir": "./wandb",
    }
    found = imported(keys)
    assert tracking(found) == Tracking(trackers=("wandb",), project="maths", experiment="first")
    assert of(found, "rl_config.use_tensorboard").kind == "honoured"
    assert of(found, "rl_config.wandb_save_dir").note == "mindrl's trackers write to the run folder"


def test_both_at_once_have_one_project_and_one_mode() -> None:
    keys: dict[str, Any] = {
        "rl_config.use_wandb": True,
        "rl_config.use_swanlab": True,
        "rl_config.swanlab_mode": "local",
        "rl_config.wandb_project": "",
        "rl_config.swanlab_project": "maths",
        "rl_config.wandb_exp_name": 7,
        "rl_config.swanlab_exp_name": "seven",
    }
    found = imported(keys)
    asked = Tracking(trackers=("wandb", "swanlab"), project="maths", experiment="7", offline=True)
    assert tracking(found) == asked
    assert of(found, "rl_config.swanlab_exp_name").note == (
        "was seven; all trackers use rl_config.tracking.experiment"
    )


@pytest.mark.parametrize(
    "keys",
    [
        {"rl_config.use_wandb": False, "rl_config.wandb_project": "maths"},
        {"rl_config.use_swanlab": True, "rl_config.swanlab_mode": "disabled"},
    ],
)
def test_what_is_off_there_is_off_here(keys: dict[str, Any]) -> None:
    assert tracking(imported(keys)) == Tracking()


def test_the_loggers_of_a_verl_run_come_by_their_names_and_others_are_told() -> None:
    keys: dict[str, Any] = {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": ["a.parquet"],
        "actor_rollout_ref.model.path": "models/A",
        "trainer.total_training_steps": 2,
        "trainer.logger": ["console", "wandb", "clearml"],
        "trainer.project_name": "maths",
        "trainer.experiment_name": "first",
    }
    found = import_verl(keys)
    assert tracking(found) == Tracking(trackers=("wandb",), project="maths", experiment="first")
    assert found.values["rl_config.use_tensorboard"] is False
    (logger,) = [each for each in found.mapped if each.key == "trainer.logger"]
    assert (logger.kind, logger.note) == ("derived", "not supported: clearml")
    plain = import_verl({**keys, "trainer.logger": "console"})
    assert tracking(plain) == Tracking()
