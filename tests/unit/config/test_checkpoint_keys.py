"""Rules between the keys of checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.run import RunConfig
from mindrl.config.validate import findings

MakeConfig = Callable[..., RunConfig]


def found(run_config: MakeConfig, overrides: dict[str, Any]) -> list[str]:
    return [each.field for each in findings(run_config(Path("model"), overrides))]


@pytest.mark.parametrize("name", ["finetune", "no_load_optim", "no_load_rng"])
def test_what_is_left_of_a_checkpoint_needs_a_folder_that_the_run_begins_from(
    name: str, run_config: MakeConfig
) -> None:
    field, resume = f"megatron_training.{name}", "megatron_training.resume"
    assert found(run_config, {field: True, resume: "outputs/run"}) == []
    assert found(run_config, {field: True, resume: "never"}) == [field]


@pytest.mark.parametrize(("saved", "judged"), [(0, 1), (2, 0), (3, 2), (2, 6)])
def test_a_best_checkpoint_needs_a_step_before_the_last_that_is_saved_and_evaluated(
    saved: int, judged: int, run_config: MakeConfig
) -> None:
    keys = {
        "megatron_training.keep_best": True,
        "megatron_training.train_iters": 6,
        "megatron_training.test_data_path": "test.jsonl",
        "megatron_training.save_interval": saved,
        "rl_config.test_freq": judged,
    }
    assert found(run_config, keys) == ["megatron_training.keep_best"]
    several = {"megatron_training.save_interval": 2, "rl_config.test_freq": 1}
    assert found(run_config, keys | several) == []
