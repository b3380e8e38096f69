"""Entry point of a training run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mindrl.cluster.prefork import PreforkServer
from mindrl.config.run import RunConfig
from mindrl.config.supervision import in_epochs
from mindrl.data.run_data import data_lines, read_data
from mindrl.errors import CheckpointError
from mindrl.launch.attempts import Attempts, RunFiles
from mindrl.launch.beginning import Beginning, beginning
from mindrl.launch.callbacks import Callbacks
from mindrl.launch.interrupts import interrupts_unwrapped, trace_requests
from mindrl.launch.parts import loop_kind
from mindrl.launch.reward_trials import warn_of_data
from mindrl.observability.console import StepConsole
from mindrl.observability.logs import configure_logging
from mindrl.observability.step_traces import StepTraces
from mindrl.observability.summary import render_summary
from mindrl.observability.terminal import print_rows, say
from mindrl.platform.device import Platform
from mindrl.preflight.derived_numbers import derived_numbers
from mindrl.preflight.run_folders import check_folders, export_folders
from mindrl.preflight.run_shardings import RunPlan
from mindrl.trainer.inputs import Prints, input_prints
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.run_log import RunFolder
from mindrl.trainer.source.interface import Gathered, Source
from mindrl.trainer.source.stored import stored_rollouts


def train(
    plan: RunPlan,
    platform: Platform,
    run_dir: Path,
    *,
    source: Callable[[PolicyTrainer], Source[Gathered]] | None = None,
    callbacks: Callbacks | None = None,
    prefork: PreforkServer | None = None,
) -> dict[str, object]:
    """Train with the algorithm of a checked run, including the export; return the summary.

    `run_dir` is the folder of the output. `source` creates the source of responses if it is not an
    engine of the run. `callbacks` are called after each step. Workers are forked from the
    prefork server, if given.

    Raises:
        MindrlError: A file or a folder is not usable, or the run failed. After the start of
            training, the summary is written and shown even if it fails.
    """
    config, folder = plan.config, RunFolder(root=run_dir.resolve())
    exports = export_folders(config, folder.root, goes_on=folder.checkpoints.is_dir())
    check_folders(plan, folder.root, exports)
    if config.rl_config.debug == "train_only":
        stored_rollouts(config)
    configure_logging(folder.logs / "driver.log")
    # Once for all attempts of a run: its data is read once too.
    inputs, data = input_prints(config), read_data(config)
    config = in_epochs(config, len(data.train.prompts))
    plan, found = replace(plan, config=config), _checkpoint(config, folder, inputs)
    say(*data_lines(data))
    warn_of_data(config, data)
    print_rows(derived_numbers(config, platform).items())
    columns = loop_kind(config).columns
    console = StepConsole(config.megatron_training.train_iters, columns=columns)
    traces = step_traces(config, folder, console)
    files = RunFiles(folder, exports, console, callbacks or Callbacks(), traces, inputs)
    attempts = Attempts(plan, platform, data, files, source=source, prefork=prefork)
    try:
        with trace_requests(traces.request), interrupts_unwrapped(), console:
            attempts.run(found)
    finally:
        console.show(render_summary(attempts.record), folds=False)
    return attempts.record


def step_traces(config: RunConfig, folder: RunFolder, console: StepConsole) -> StepTraces:
    """Return a recorder of the timelines of the configured steps."""
    first, also = config.profiler_config.trace_steps, config.profiler_config.profiled_steps
    return StepTraces(folder.traces, console.note, first=first, also=also)


def _checkpoint(config: RunConfig, folder: RunFolder, inputs: Prints) -> Beginning | None:
    """Return the checkpoint from which the run of a folder resumes; None for a new run.

    Raises:
        CheckpointError: The run must not resume, or not with this configuration, or no checkpoint
            is complete.
    """
    if config.megatron_training.resume == "never" and folder.checkpoints.is_dir():
        raise CheckpointError(
            f"megatron_training.resume=never: {folder.checkpoints} holds checkpoints of an earlier "
            "run; set another hydra.run.dir, or continue with megatron_training.resume=auto"
        )
    return beginning(config, folder, inputs)
