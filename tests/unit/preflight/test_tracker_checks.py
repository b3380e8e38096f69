"""What is found of trackers before anything starts."""

import importlib.util
import socket
from pathlib import Path
from typing import Any

import pytest
from checked_runs import CPU, MakeConfig, model_folder, overrides

from mindrl.errors import ConfigError
from mindrl.preflight.checks import check
from mindrl.preflight.derived_numbers import derived_numbers

TRACKERS = "rl_config.tracking.trackers"
PORT = "rl_config.tracking.prometheus_port"
USER = Path(__file__).parents[1] / "tracking" / "user_trackers.py"


def findings(tmp_path: Path, run_config: MakeConfig, changed: dict[str, Any]) -> list[str]:
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | changed)
    with pytest.raises(ConfigError) as refusal:
        check(config, CPU)
    return str(refusal.value).splitlines()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["wandbb"], f"{TRACKERS}=wandbb must be wandb, swanlab, mlflow or 'package.module:"),
        (["tensorboard"], f"{TRACKERS}=tensorboard must be wandb, swanlab, mlflow or"),
        (["own:a", "own:a"], f"{TRACKERS}=own:a,own:a must list each tracker once"),
        ([f"{USER}:Slwo"], f"{TRACKERS}='{USER}:Slwo': {USER} has no 'Slwo'; did you mean 'Slow'?"),
    ],
)
def test_a_tracker_that_is_none_is_refused(
    names: list[str], said: str, tmp_path: Path, run_config: MakeConfig
) -> None:
    first, *_ = findings(tmp_path, run_config, {TRACKERS: names})
    assert first.startswith(said)


def test_the_nearest_name_and_the_key_that_was_meant_are_named(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    asked = {TRACKERS: ["wandbb", "tensorboard"]}
    near, other = findings(tmp_path, run_config, asked)
    assert near.endswith("; did you mean 'wandb'?")
    assert other.endswith("; use the key rl_config.use_tensorboard for tensorboard")


def test_a_package_that_is_missing_is_refused_with_the_words_that_install_it(
    tmp_path: Path, run_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "mindrl.preflight.tracker_checks.find_spec",
        lambda name: None if name == "swanlab" else find(name),
    )
    assert findings(tmp_path, run_config, {TRACKERS: ["swanlab"]}) == [
        f"{TRACKERS}=swanlab: the package swanlab is not installed: pip install 'mindrl[swanlab]'"
    ]


def test_a_port_that_is_taken_is_refused(tmp_path: Path, run_config: MakeConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert findings(tmp_path, run_config, {PORT: port}) == [
            f"{PORT}={port} must be a free port on 127.0.0.1: Address already in use"
        ]
    config = run_config(model_folder(tmp_path / "other"), overrides(tmp_path) | {PORT: port})
    check(config, CPU)


def test_where_the_metrics_go_is_one_of_the_derived_numbers(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    folder, asked = model_folder(tmp_path / "model"), overrides(tmp_path)
    assert "metrics go to" not in derived_numbers(run_config(folder, asked), CPU)
    asked |= {TRACKERS: [f"{USER}:Slow"], PORT: 9400, "rl_config.tracking.offline": True}
    config = run_config(folder, asked)
    check(config, CPU)
    assert derived_numbers(config, CPU)["metrics go to"] == (
        f"{USER}:Slow (project mindrl, offline); http://127.0.0.1:9400/metrics"
    )
