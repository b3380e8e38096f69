"""How an attempt at a run ends, on record."""

import io
import json
from pathlib import Path

import pytest
from memory_roles import config, data

from mindrl.cluster.ray_cluster import RayCluster
from mindrl.errors import InterruptedRunError
from mindrl.launch.attempts import Attempts, RunFiles
from mindrl.layouts.layout import RolloutLayout
from mindrl.observability.console import StepConsole
from mindrl.platform.device import planned_platform
from mindrl.preflight.run_shardings import RunPlan
from mindrl.trainer.run_log import RunFolder


def test_an_interrupt_that_ray_wraps_while_it_starts_is_an_interrupt_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C falls where it may; here it always falls into Ray's compiled code."""

    def start(_: RayCluster) -> None:
        error = SystemError("returned a result with an exception set")
        raise error from InterruptedRunError("stopped by SIGINT")

    monkeypatch.setattr(RayCluster, "start", start)
    plan = RunPlan(
        config=config(verifier_function=()), models={}, layouts={}, rollout=RolloutLayout()
    )
    folder = RunFolder(root=tmp_path)
    files = RunFiles(folder, {"actor": tmp_path / "model"}, StepConsole(1, io.StringIO()))
    with pytest.raises(InterruptedRunError, match=r"^stopped by SIGINT$"):
        Attempts(plan, planned_platform("cpu"), data(), files).run(None)
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"
