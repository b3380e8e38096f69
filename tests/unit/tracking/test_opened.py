"""The configured trackers, and the data that their processes get."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindrl.config.run import RunConfig
from mindrl.tracking.opened import opened_trackers
from mindrl.tracking.process import ProcessTracker
from mindrl.tracking.prometheus import PrometheusEndpoint

MakeConfig = Callable[..., RunConfig]
USER = Path(__file__).with_name("user_trackers.py")
ASKED: dict[str, Any] = {
    "rl_config.tracking.trackers": [f"{USER}:FileTracker"],
    "rl_config.tracking.prometheus_port": 9464,
}


def opened(root: Path, config: RunConfig) -> list[Any]:
    metrics = root / "metrics.jsonl"
    metrics.write_text('{"step": 1, "reward/mean": 0.5}\n')
    return opened_trackers(
        config, root / "trackers", metrics=metrics, logs=root / "logs", goes_on=False
    )


def test_a_tracker_is_told_of_the_run_by_its_folder_and_its_keys(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    root = tmp_path / "2026-11-23" / "09-00-00"
    root.mkdir(parents=True)
    tracker, endpoint = opened(root, run_config(Path("model"), ASKED))
    assert isinstance(tracker, ProcessTracker)
    assert isinstance(endpoint, PrometheusEndpoint)
    tracker.close()
    outcome = tracker.outcome()
    assert (outcome["kept"], outcome["missed"]) == (1, 0)
    told = json.loads(tracker.job.place.read_text())
    assert (told["project"], told["experiment"]) == ("mindrl", "2026-11-23-09-00-00")
    assert told["config"]["megatron_training.global_batch_size"] > 0
    assert told["config"]["rl_config.tracking.trackers"] == [f"{USER}:FileTracker"]


def test_without_a_word_of_them_there_is_no_process_and_no_port(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    assert opened(tmp_path, run_config(Path("model"), {})) == []
    assert not (tmp_path / "trackers").exists()


def test_a_rollout_job_leaves_the_port_to_the_job_that_trains(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    keys = {"rl_config.tracking.prometheus_port": 9464}
    job = {"spool_config.job": "rollout", "spool_config.folder": "spool"}
    assert len(opened(tmp_path, run_config(Path("model"), keys))) == 1
    assert opened(tmp_path, run_config(Path("model"), keys | job)) == []
