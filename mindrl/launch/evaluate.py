"""Evaluation of a model with the engine and the rewards of a run."""

from pathlib import Path

from mindrl.data.run_data import RunData
from mindrl.launch.attempts import Attempts, RunFiles
from mindrl.launch.provenance import provenance
from mindrl.observability.console import StepConsole
from mindrl.observability.logs import configure_logging
from mindrl.observability.trackers import JsonlTracker
from mindrl.platform.device import Platform
from mindrl.preflight.run_shardings import RunPlan
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary


def measure_model(
    plan: RunPlan, platform: Platform, data: RunData, output: Path, *, step: int
) -> dict[str, object]:
    """Generate and score answers to all evaluation prompts of a run.

    Args:
        plan: Plan of a run that only rolls out.
        platform: Platform of the workers.
        data: Held-out file and evaluation sets.
        output: Folder for metrics, answers and logs, as for a run.
        step: Seeds the answers like the evaluation after that step.

    Returns:
        The content of `summary.json` in that folder.

    Raises:
        MindrlError: Workers cannot be started, or fail.
    """
    output.mkdir(parents=True, exist_ok=True)
    folder, console = RunFolder(output), StepConsole(max(step, 1))
    configure_logging(folder.logs / "driver.log")
    attempts = Attempts(plan, platform, data, RunFiles(folder, {}, console))
    summary = RunSummary(exports={"actor": output / "model"}, provenance=provenance(plan.config))
    run_log = RunLog(folder, summary, console, [JsonlTracker(folder.metrics)])
    try:
        with attempts.once(None, run_log) as trainer:
            trainer.workers.engines.publish(step)
            trainer.evaluate(step)
            summary.status = "completed"
    finally:
        record = run_log.close()
    return record
