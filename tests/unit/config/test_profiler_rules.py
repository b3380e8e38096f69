"""Each rule of `profiler_config`, with its whole message; and what is just inside the rule."""

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


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"profile_step_start": 3, "profile_step_end": 3},
            (
                "profile_step_end=3 must be more than profiler_config.profile_step_start=3: it is "
                "not profiled itself"
            ),
        ),
        (
            {"profile": True, "profile_step_start": 31, "profile_step_end": 32},
            "profile_step_start=31 is behind the last step, megatron_training.train_iters=30",
        ),
        (
            {"profile_with_cpu": False, "profile_with_npu": False, "rl_config.device": "npu"},
            (
                "profile_with_cpu=false leaves nothing to profile with "
                "profiler_config.profile_with_npu=false"
            ),
        ),
        (
            {"profile_with_cpu": False, "rl_config.device": "cpu"},
            "profile_with_cpu=false leaves nothing to profile with rl_config.device=cpu",
        ),
        (
            {"profile": True, "spool_config.job": "rollout", "spool_config.folder": "spool"},
            (
                "profile=true has no meaning for a rollout job, which has records in the place of "
                "steps"
            ),
        ),
        ({"profile_ranks": []}, "profile_ranks= names nothing; null is all"),
        ({"stage": []}, "stage= names nothing; null is all"),
        (
            {"profile_ranks": [0, 2]},
            "profile_ranks=0,2: there is no rank 2; 1 worker(s) count from 0",
        ),
    ],
)
def test_what_leaves_nothing_to_profile_is_refused(
    run_config: MakeConfig, changes: dict[str, Any], text: str
) -> None:
    changes = {"megatron_training.train_iters": 30} | changes
    assert texts(run_config, changes) == [f"profiler_config.{text}"]


def test_the_last_step_and_the_last_rank_can_be_profiled(run_config: MakeConfig) -> None:
    steps = {"profile": True, "profile_step_start": 30, "profile_step_end": 31}
    ranks = {"profile_ranks": [0], "stage": ["actor_update"], "megatron_training.train_iters": 30}
    assert texts(run_config, steps | ranks) == []


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
