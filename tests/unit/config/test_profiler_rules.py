"""Rules of `profiler_config`; tests/golden/check.yaml has what they refuse."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.errors import ConfigError

MakeConfig = Callable[..., RunConfig]


def texts(run_config: MakeConfig, changes: dict[str, Any]) -> list[str]:
    asked = {
        key if "." in key else f"profiler_config.{key}": value for key, value in changes.items()
    }
    return [str(each) for each in findings(run_config(Path("model"), asked))]


def test_the_last_step_and_the_last_rank_can_be_profiled(run_config: MakeConfig) -> None:
    steps = {"profile": True, "profile_step_start": 30, "profile_step_end": 31}
    ranks = {"profile_ranks": [0], "stage": ["actor_update"], "megatron_training.train_iters": 30}
    assert texts(run_config, steps | ranks) == []


def test_ranks_of_replicas_on_separate_devices_can_be_profiled(run_config: MakeConfig) -> None:
    apart = {
        "rl_config.use_integrated_worker": False,
        "rl_config.rollout_resource.num_npus": 8,
        "generate_config.infer_tensor_parallel_size": 4,
    }
    for rank, count in ((3, 0), (4, 1)):
        profile = {"profiler_config.profile": True, "profiler_config.profile_ranks": [rank]}
        found = findings(run_config(Path("model"), apart | profile))
        assert len([each for each in found if each.field.endswith("profile_ranks")]) == count


@pytest.mark.parametrize(
    ("key", "value"),
    [("trace_steps", -1), ("stage", ["actor_learn"]), ("profile_level", "level3"), ("steps", 2)],
)
def test_a_value_of_no_meaning_and_an_unknown_key_are_refused_by_name(
    run_config: MakeConfig, key: str, value: object
) -> None:
    with pytest.raises(ConfigError, match=f"profiler_config.{key}"):
        run_config(Path("model"), {f"profiler_config.{key}": value})


def test_what_is_profiled_counts_from_one_step_up_to_another(run_config: MakeConfig) -> None:
    keys = {"profile_step_start": 3, "profile_step_end": 5}
    asked = {f"profiler_config.{key}": value for key, value in keys.items()}
    off = run_config(Path("model"), asked).profiler_config
    on = run_config(Path("model"), {**asked, "profiler_config.profile": True}).profiler_config
    assert (list(off.profiled_steps), list(on.profiled_steps)) == ([], [3, 4])
