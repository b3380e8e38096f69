"""How an attempt at a run ends, on record."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from memory_roles import config, data

from mindrl.cluster.call_limits import CallLimits
from mindrl.cluster.ray_cluster import RayCluster
from mindrl.errors import InterruptedRunError, WorkerDiedError
from mindrl.launch import attempts as module
from mindrl.launch.attempts import Attempts, RunFiles
from mindrl.layouts.layout import RolloutLayout
from mindrl.observability.console import StepConsole
from mindrl.platform.device import planned_platform
from mindrl.preflight.run_shardings import RunPlan
from mindrl.trainer.run_log import RunFolder, RunLog


def attempts(folder: Path, **changes: object) -> Attempts:
    settings = config(**{"verifier_function": (), "verifier_weight": (), **changes})
    plan = RunPlan(config=settings, models={}, layouts={}, rollout=RolloutLayout())
    run_folder = RunFolder(root=folder)
    files = RunFiles(run_folder, {"actor": folder / "model"}, StepConsole(1, io.StringIO()))
    return Attempts(plan, planned_platform("cpu"), data(), files)


def test_an_interrupt_that_ray_wraps_while_it_starts_is_an_interrupt_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C falls where it may; here it always falls into Ray's compiled code."""

    def start(_: RayCluster) -> None:
        error = SystemError("returned a result with an exception set")
        raise error from InterruptedRunError("stopped by SIGINT")

    monkeypatch.setattr(RayCluster, "start", start)
    with pytest.raises(InterruptedRunError, match=r"^stopped by SIGINT$"):
        attempts(tmp_path).run(None)
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"


def test_an_interrupt_between_two_attempts_is_one_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_a_worker(run: Attempts, *_: object) -> None:
        run.has_started = True
        raise WorkerDiedError("worker-1 died")

    def interrupt(*_: object) -> None:
        raise InterruptedRunError("stopped by SIGTERM")

    monkeypatch.setattr(Attempts, "_train", lose_a_worker)
    monkeypatch.setattr(module, "beginning", interrupt)
    with pytest.raises(InterruptedRunError):
        attempts(tmp_path).run(None)
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"


def test_the_seconds_of_a_run_count_what_its_faults_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trainer:
        def __init__(self, run_log: RunLog) -> None:
            self.run_log = run_log

        def run(self, _: object) -> None:
            started.append(self.run_log.summary.started)
            if len(started) == 1:
                raise WorkerDiedError("worker-1 died")

    @contextmanager
    def trainer(run: Attempts, _: object, __: object, run_log: RunLog) -> Iterator[Trainer]:
        run.has_started = True
        yield Trainer(run_log)

    started: list[float] = []
    monkeypatch.setattr(Attempts, "_trainer", trainer)
    changes = {"max_restarts": 1, "save_interval": 1, "memory_timeline_steps": 0}
    run = attempts(tmp_path, **changes)
    run.run(None)
    assert started == [run.started] * 2
    assert run.record["restarts"] == 1
    assert run.record["status"] == "completed"


def test_new_workers_hear_how_long_calls_of_the_former_ones_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Group:
        def __init__(self, *_: object) -> None:
            self.limits = CallLimits(first_seconds=14_400, least_seconds=600)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(module, "WorkerGroup", Group)
    run = attempts(tmp_path)
    cluster = RayCluster(run.platform, devices=1, devices_per_node=1, timeout_seconds=1)
    with run._workers(cluster) as first:
        first.group.limits.note(("update", 1, 8), 300.0, 20)
    with run._workers(cluster) as second:
        assert second.group is not first.group
        assert second.group.limits.of(("update", 1, 8)).seconds == 1500
