"""Some reward tells responses apart: not all of its weights are 0, and a filter knows it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.trainer.reward_manager import ENVIRONMENT


def found(run_config: Callable[..., RunConfig], changes: dict[str, Any]) -> list[str]:
    return [each.field for each in findings(run_config(Path("model"), changes))]


def test_rewards_that_all_weigh_nothing_teach_nothing(run_config: Callable[..., RunConfig]) -> None:
    names = "rl_config.verifier_weight"
    assert found(run_config, {names: [0.0, 0.0]}) == [names]
    assert found(run_config, {names: [0.0, 0.1]}) == []
    # A reward model rates, and the functions measure accuracy alone.
    model = {"reward_config.load": "model", "reward_config.weight": 1.0}
    assert found(run_config, {names: [0.0, 0.0]} | model) == []
    assert found(run_config, {names: [0.0, 0.0]} | model | {"reward_config.weight": 0.0}) == [names]


def test_groups_may_be_judged_by_a_function_of_any_source(
    run_config: Callable[..., RunConfig],
) -> None:
    code = {"data_source": "code", "verifier_function": ["code.py:runs"], "verifier_weight": [1.0]}
    keys = {"data_config.source_column": "source", "data_config.rewards": [code]}
    metric = "rl_config.filter_groups_metric"
    keys |= {"rl_config.filter_groups_enable": True, metric: "code.py:runs"}
    assert found(run_config, keys) == []
    assert found(run_config, keys | {metric: "code.py:other"}) == [metric]


def test_groups_may_be_judged_by_the_rewards_of_the_environment(
    run_config: Callable[..., RunConfig],
) -> None:
    metric, game = "rl_config.filter_groups_metric", "environment_config.environment"
    keys = {"rl_config.filter_groups_enable": True, metric: ENVIRONMENT}
    assert found(run_config, keys) == [metric]
    assert metric not in found(run_config, keys | {game: "game.py:Guess"})
