"""How an attempt at a run ends, on record."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from memory_roles import config, data

from mindrl.checkpoint.commits import Commits, verify_share, write_synced
from mindrl.cluster.call_limits import CallLimits
from mindrl.cluster.ray_cluster import RayCluster
from mindrl.config.resume import recorded_config
from mindrl.errors import CheckpointError, InterruptedRunError, WorkerDiedError
from mindrl.launch import attempts as module
from mindrl.launch.attempts import Attempts, RunFiles
from mindrl.launch.beginning import beginning
from mindrl.launch.jobs import _roll_out
from mindrl.layouts.layout import RolloutLayout
from mindrl.observability.console import StepConsole
from mindrl.platform.device import planned_platform
from mindrl.preflight.run_shardings import RunPlan
from mindrl.report.run_state import RunState
from mindrl.spool.duties import Duties
from mindrl.spool.folder import Spool
from mindrl.trainer.run_log import RunFolder, RunLog


def attempts(folder: Path, **changes: object) -> Attempts:
    settings = config(**{"verifier_function": (), "verifier_weight": (), **changes})
    plan = RunPlan(config=settings, models={}, layouts={}, rollout=RolloutLayout())
    run_folder = RunFolder(root=folder)
    files = RunFiles(run_folder, {"actor": folder / "model"}, StepConsole(1, io.StringIO()))
    return Attempts(plan, planned_platform("cpu"), data(), files)


def report_status(folder: Path) -> object:
    """Return the status that a report shows."""
    state = RunState(folder)
    state.update()
    return state.since(-1)["status"]


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


def test_a_rollout_job_has_its_restarts_and_its_interrupt_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def trainer(run: Attempts, *_: object) -> Iterator[None]:
        run.has_started = True
        raise ends.pop()
        yield

    ends = [InterruptedRunError("stopped by SIGTERM"), WorkerDiedError("worker-1 died")]
    monkeypatch.setattr(Attempts, "_trainer", trainer)
    with spool_of_one_job(tmp_path / "spool") as duties, pytest.raises(InterruptedRunError):
        _roll_out(attempts(tmp_path, max_restarts=1), duties)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert (found["status"], found["restarts"]) == ("interrupted", 1)


@contextmanager
def spool_of_one_job(folder: Path) -> Iterator[Duties]:
    spool = Spool(folder)
    with spool.leases("a rollout job") as leases:
        yield Duties(spool=spool, leases=leases)


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


def test_a_running_attempt_has_no_summary_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that of an earlier start, nor that of an attempt that lost a worker."""

    def train(run: Attempts, *_: object) -> None:
        run.has_started = True
        statuses.append(report_status(tmp_path))
        if len(statuses) == 1:
            raise WorkerDiedError("worker-1 died")

    statuses: list[object] = []
    monkeypatch.setattr(Attempts, "_train", train)
    (tmp_path / "summary.json").write_text('{"status": "completed"}')
    attempts(tmp_path, max_restarts=1, save_interval=1).run(None)
    assert statuses == ["no recorded end"] * 2
    assert report_status(tmp_path) == "completed"


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


@pytest.mark.parametrize("left", [[], [10], [10, 15]])
def test_a_checkpoint_that_ranks_find_damaged_is_not_restored_but_the_one_before(
    left: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Workers:
        """Two ranks."""

        group = SimpleNamespace()

        def verify_checkpoint(self, folder: Path) -> list[str]:
            problems = []
            for rank in (0, 1):
                try:
                    verify_share(folder, rank, 2)
                except CheckpointError as error:
                    problems.append(str(error))
            return problems

        def restore(self, folder: Path, _: object) -> None:
            restored.append(folder.name)

    @contextmanager
    def workers(*_: object) -> Iterator[Workers]:
        yield Workers()

    restored: list[str] = []
    resumed: list[int] = []
    loop = SimpleNamespace(
        resume=lambda step, _: resumed.append(step), run=lambda _: None, source=None
    )
    monkeypatch.setattr(Attempts, "_make_ready", lambda *_: None)
    monkeypatch.setattr(Attempts, "_workers", workers)
    monkeypatch.setattr(module, "loop_of", lambda *_: loop)
    run = attempts(tmp_path, save_interval=5, memory_timeline_steps=0, train_iters=50)
    recorded = {"config": recorded_config(run.plan.config), "updates": {"actor": 1}}
    commits = Commits(run.files.folder.checkpoints)
    for step in (*left, 20):
        folder = commits.begin(step)
        names = (f"actor-0000{rank}.safetensors" for rank in (0, 1))
        files = [write_synced(folder / name, [bytes(100)]) for name in names]
        commits.commit(step, files, {**recorded, "step": step})
    damaged = commits.root / "step-00000020/actor-00001.safetensors"
    damaged.write_bytes(bytes(99) + b"1")
    found = beginning(run.plan.config, run.files.folder, {})
    assert found is not None
    assert found.step == 20
    if not left:
        with pytest.raises(CheckpointError, match="all 1 checkpoints are damaged"):
            run.run(found)
        assert (restored, run.record["status"]) == ([], "failed")
        return
    run.run(found)
    assert (restored, resumed) == ([f"step-000000{left[-1]}"], [left[-1]])
    assert run.record["status"] == "completed"
    assert str(damaged) in run.damaged[damaged.parent]
