"""The start of a run: from its own checkpoints, those of another run, or none."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindrl.checkpoint.commits import Checkpoint, Commits
from mindrl.checkpoint.earlier_runs import named_checkpoints
from mindrl.checkpoint.fixed_models import replaced_models
from mindrl.config.resume import resume_findings
from mindrl.config.run import RunConfig
from mindrl.errors import CheckpointError
from mindrl.observability.output_files import step_of_record
from mindrl.observability.terminal import note
from mindrl.report.run_record import raw_lines, step_lines
from mindrl.trainer.inputs import Prints, changed_inputs
from mindrl.trainer.run_log import RunFolder
from mindrl.trainer.source.choice import source_state


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Data that a run takes from a checkpoint."""

    folder: Path
    """Folder of the checkpoint."""
    step: int
    """Step after which the run continues; 0 if it takes only weights."""
    updates: Mapping[str, int]
    """Optimizer steps of each model so far; 0 resets its optimizer."""
    state: Mapping[str, Any]
    """State of the trainer, by its parts."""

    def __str__(self) -> str:
        """Describe it for the user."""
        if self.step:
            return f"continues after step {self.step}, from {self.folder}"
        return f"starts with the weights of {self.folder}"


def beginning(
    config: RunConfig, folder: RunFolder, inputs: Prints, damaged: Mapping[Path, str] = {}
) -> Beginning | None:
    """Return the checkpoint from which the run of a folder resumes; None for a new run.

    Its own checkpoints take precedence over those in its configuration. `inputs` are the
    fingerprints of the run's files, `damaged` the problems that workers found in checkpoints.

    Raises:
        CheckpointError: The configuration does not match the checkpoint, no checkpoint is complete,
            or those of a run that had some are missing.
    """
    own, place = Commits(folder.checkpoints), config.megatron_training.begins_from
    if steps := own.steps():
        return _newest_complete(config, own.newest_complete(steps, damaged), own, inputs)
    _check_not_emptied(config, folder)
    return (
        None if place is None else _inherited(config, _of_another(config, place, inputs, damaged))
    )


def first_step(config: RunConfig, folder: RunFolder, found: Beginning | None) -> int:
    """Return the first step whose records are removed when a run starts or continues.

    A rollout job has no checkpoints, and generates only what its spool lacks: it keeps all.
    """
    if config.spool_config.job == "rollout":
        return 1 + max((row["step"] for row in step_lines(folder.metrics)), default=-1)
    # A start from step 0 repeats the evaluation before training too.
    return found.step + 1 if found and found.step else 0


def _check_not_emptied(config: RunConfig, folder: RunFolder) -> None:
    """Refuse to start in the folder of a run that has lost its checkpoints.

    A disk that is not mounted looks like this. A run that was killed before its first checkpoint
    may start again.
    """
    checkpoints, metrics = folder.checkpoints, folder.metrics
    if not checkpoints.is_dir() or any(checkpoints.iterdir()):
        return
    steps = map(step_of_record, raw_lines(metrics))
    last = max((step for step in steps if step is not None), default=0)
    if last > config.megatron_training.save_interval:
        raise CheckpointError(
            f"{checkpoints} is empty, but {metrics} has {last} steps, which a new run would "
            "replace; restore the checkpoints, or remove the empty folder to start a new run"
        )


def _of_another(
    config: RunConfig, place: str, inputs: Prints, damaged: Mapping[Path, str]
) -> Beginning:
    commits, steps = named_checkpoints(place)
    training = config.megatron_training
    newest = commits.newest_complete(steps, damaged)
    found = _newest_complete(config, newest, commits, inputs, weights_alone=training.finetune)
    assert found is not None, "at least one checkpoint is complete"
    last = training.train_iters
    if found.step >= last and not training.finetune:
        raise CheckpointError(
            f"megatron_training.train_iters={last} must be above {found.step}, the last step of "
            f"megatron_training.resume={found.folder}; raise it and list it in "
            "megatron_training.resume_allow"
        )
    return found


def _newest_complete(
    config: RunConfig,
    newest: tuple[Checkpoint | None, list[str]],
    commits: Commits,
    inputs: Prints,
    *,
    weights_alone: bool = False,
) -> Beginning | None:
    """Return the newest complete checkpoint, if the configuration may continue from it.

    `newest` is that checkpoint with the problems of newer ones.
    """
    found, problems = newest
    for problem in problems:
        note(f"{problem}; skipping this checkpoint")
    if found is None:
        if problems:
            raise CheckpointError(f"{commits.root}: all {len(problems)} checkpoints are damaged")
        return None
    state = found.state()
    findings = [*map(str, resume_findings(state["config"], config, weights_alone=weights_alone))]
    if not weights_alone:
        findings += replaced_models(state.get("fixed_models", {}), config)
        allowed = config.megatron_training.resume_allow
        findings += changed_inputs(state.get("inputs", {}), inputs, allowed)
    if findings:
        raise CheckpointError("\n".join(findings))
    # A reference that was reset may be fixed from now on.
    updates = {role: n for role, n in state["updates"].items() if role in config.changing_roles}
    if not weights_alone:
        _check_readable(found.folder, state)
    if not weights_alone and "source" in state:
        state = {**state, "source": source_state(config, found.step, state)}
    return Beginning(folder=found.folder, step=found.step, updates=updates, state=state)


def _check_readable(folder: Path, state: Mapping[str, Any]) -> None:
    """Refuse a state that earlier versions stored in a form that is not read any more.

    `gathering` has the open groups and the position in the data, both with other fields than
    `source`. It is empty if neither existed.
    """
    if state.get("gathering"):
        raise CheckpointError(
            f"{folder}: an earlier version of mindrl stored the open groups of responses and the "
            "position in the data, which this version cannot read; continue with that version, or "
            "take only the weights with megatron_training.finetune=true"
        )


def _inherited(config: RunConfig, found: Beginning) -> Beginning:
    """Drop the parts that a new run must not take."""
    training = config.megatron_training
    updates, state = {**found.updates}, {**found.state}
    if training.finetune:
        updates.pop("ref", None)
    if training.finetune or training.no_load_optim:
        updates = dict.fromkeys(updates, 0)
    if training.no_load_rng:
        # Runs on the answers of rows have none.
        state.pop("minibatches", None)
    if training.finetune:
        return Beginning(folder=found.folder, step=0, updates=updates, state={})
    return Beginning(folder=found.folder, step=found.step, updates=updates, state=state)
