"""Repeat one step of a run from its checkpoint and its stored responses."""

import json
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mindrl.checkpoint.commits import Commits
from mindrl.checkpoint.step_names import step_name
from mindrl.config.run import RunConfig
from mindrl.data.run_data import read_data
from mindrl.errors import CheckpointError, ConfigError
from mindrl.launch.attempts import Attempts, RunFiles
from mindrl.launch.beginning import Beginning
from mindrl.observability.console import StepConsole
from mindrl.observability.logs import configure_logging
from mindrl.observability.metrics import Metrics, computed, measured, merge
from mindrl.observability.output_files import json_text
from mindrl.platform.device import Platform
from mindrl.preflight.run_shardings import RunPlan
from mindrl.report.run_record import step_lines
from mindrl.trainer.comparison import Comparison, Number, compare_metrics, compare_rollouts
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.reward_manager import RatedBatch, Rating
from mindrl.trainer.rollout_files import RolloutFiles
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary
from mindrl.trainer.source.interface import Gathered


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Stored data of a step."""

    step: int
    replays: RunFolder
    """Folder of a replay's logs."""
    metrics: dict[str, Number]
    """Metrics that the step computed."""
    batch: RatedBatch | None
    """Its responses; None if they are missing."""
    before: Beginning | None
    """State after the previous step. None for the first step, from the initial models."""


def recorded_step(config: RunConfig, folder: RunFolder, step: int, *, generates: bool) -> Recorded:
    """Read the stored data of a step.

    Args:
        config: That of the replay.
        folder: That of the run.
        step: From 1.
        generates: The responses may be missing, because they are generated again.

    Raises:
        ConfigError: Data is missing; lists the steps that can be replayed.
        CheckpointError: The checkpoint is damaged.
        DataError: The file of the responses cannot be read.
    """
    if config.reads_answers:
        raise ConfigError(
            f"--step {step}: {folder.root} trains on the answers of rows and generates no responses"
            "; repeat the run with the same seed to get the same numbers"
        )
    if config.actor_config.router_replay == "R3" and not generates:
        raise ConfigError(
            f"--step {step}: stored responses have no experts, which actor_config.router_replay=R3 "
            "needs; add --generate"
        )
    lines, files = _lines(folder.metrics), RolloutFiles(folder.rollouts)
    commits = Commits(folder.checkpoints)
    before, stored = {each + 1 for each in commits.steps()}, {*files.steps()}
    if config.megatron_training.begins_from is None:
        before.add(1)
    suffices = lines.keys() & before & (lines.keys() if generates else stored)
    if step not in suffices:
        lacks = {
            "a line in metrics.jsonl": step in lines,
            f"a checkpoint of step {step - 1}": step in before,
            "a file in rollouts/ (not needed with --generate)": generates or step in stored,
        }
        missing = ", ".join(what for what, is_there in lacks.items() if not is_there)
        possible = ", ".join(map(str, sorted(suffices))) or "none"
        raise ConfigError(
            f"--step {step}: {folder.root} lacks {missing}; steps that can be replayed: {possible}"
        )
    return Recorded(
        step=step,
        replays=RunFolder(folder.root / "replays" / step_name(step)),
        metrics=lines[step],
        batch=files.read(step) if step in stored else None,
        before=_state_after(commits, step - 1) if step > 1 else None,
    )


def _state_after(commits: Commits, step: int) -> Beginning:
    """Return the state after a step, after checking the checksums of its files."""
    found, problems = commits.newest_complete([step])
    if found is None:
        raise CheckpointError("\n".join(problems))
    state = found.state()
    return Beginning(folder=found.folder, step=step, updates=state["updates"], state=state)


def replay(
    plan: RunPlan, platform: Platform, recorded: Recorded, *, generates: bool, scores: bool
) -> Comparison:
    """Repeat a step, and compare its results with the recorded ones.

    With `generates` the rollout is repeated and compared; the update still trains on stored
    responses, if any. `scores` scores these again.

    Raises:
        MindrlError: Workers cannot be started, or fail.
    """
    folder = recorded.replays
    configure_logging(folder.logs / "driver.log")
    data, console = read_data(plan.config), StepConsole(plan.config.megatron_training.train_iters)
    attempts = Attempts(plan, platform, data, RunFiles(folder, {}, console))
    # The log of this step must not be mixed with the run's.
    with TemporaryDirectory() as scratch, console:
        summary = RunSummary(exports={"actor": Path(scratch, "model")})
        run_log = RunLog(RunFolder(Path(scratch)), summary, console, [])
        with attempts.once(recorded.before, run_log) as trainer:
            return run_again(trainer, recorded, generates=generates, scores=scores)


def run_again(
    trainer: PolicyTrainer, recorded: Recorded, *, generates: bool, scores: bool
) -> Comparison:
    """Repeat a step on a trainer with the state after the previous step, and compare."""
    batch, compared = recorded.batch, Comparison(count=0, differences=())
    ways: Metrics = {}
    if generates:
        gathered = trainer.source.next(recorded.step, lambda: None)
        ways = gathered.metrics
        if batch is not None:
            compared = compare_rollouts(batch.rollouts, gathered.rollouts)
    if batch is not None:
        rating: Rating = nullcontext(lambda: batch.rewarded)
        if scores:
            # A file of rollouts lacks the columns of the rows, which rewards may use.
            rows = {each.uid: each.row for each in trainer.data.train.prompts}
            asked = [replace(each, row=rows.get(each.uid)) for each in batch.prompts]
            rating = trainer.rewards.compute(asked, batch.rollouts, blocking=True)
        gathered = Gathered(prompts=batch.prompts, rollouts=batch.rollouts, rating=rating)
    learned, _ = trainer.train_on(recorded.step, gathered)
    metrics = computed(measured(merge(learned, ways, trainer.workers.flush_metrics())))
    # Metrics of the rollout exist only if it is repeated.
    before = {
        name: value
        for name, value in recorded.metrics.items()
        if generates or not name.startswith(("groups/", "staleness/"))
    }
    # Converted as in the record: non-finite values are null.
    return compared + compare_metrics(before, json.loads(json_text(metrics)))


def _lines(path: Path) -> dict[int, dict[str, Number]]:
    """Return each step's computed metrics, without lines of evaluations."""
    return {
        line["step"]: computed({name: value for name, value in line.items() if name != "step"})
        for line in step_lines(path)
        if "seconds/step" in line
    }
