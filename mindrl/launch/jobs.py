"""The two jobs of a spool: entry points of the train job and of a rollout job."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xxhash

from mindrl.checkpoint.commits import Commits
from mindrl.checkpoint.fixed_models import fingerprint
from mindrl.config.resume import recorded_config
from mindrl.config.run import RunConfig
from mindrl.data.run_data import RunData, data_lines, read_data
from mindrl.errors import OutputError, SpoolError, WorkerDiedError
from mindrl.launch.attempts import Attempts, RunFiles, Services
from mindrl.launch.interrupts import interrupts_unwrapped, stop_requests, trace_requests
from mindrl.launch.restarts import Restarts
from mindrl.launch.reward_trials import warn_of_data
from mindrl.launch.train import train
from mindrl.observability.console import StepConsole
from mindrl.observability.logs import configure_logging
from mindrl.observability.output_files import output_errors, replace_file
from mindrl.observability.terminal import say
from mindrl.platform.device import Platform
from mindrl.preflight.run_shardings import RunPlan
from mindrl.spool.duties import Duties
from mindrl.spool.folder import Spool, SpoolLimits, SpoolProgress
from mindrl.spool.header import CONTENT
from mindrl.spool.leases import Leases
from mindrl.spool.reader import RecordReader
from mindrl.trainer.inputs import shared_prints
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.run_log import RunFolder
from mindrl.trainer.source.choice import spool_source
from mindrl.trainer.source.generated import GeneratedGroups
from mindrl.trainer.spool_rollouts import SpoolRollouts

_AGREED = (
    *("megatron_training.seed", "megatron_training.train_iters"),
    *("megatron_training.global_batch_size", "megatron_training.no_shuffle"),
    *("rl_config.n_samples_per_prompt", "rl_config.reproducible_sampling"),
    *("rl_config.max_staleness", "rl_config.verifier_function", "rl_config.verifier_weight"),
    "rl_config.verifier_kwargs",
    *("generate_config.sampling_config", "data_config.order", "data_config.rewards"),
    *("spool_config.publish_every", "spool_config.prompts_per_record"),
    *("environment_config.environment", "environment_config.environments"),
    *("environment_config.arguments", "environment_config.tools", "environment_config.agent"),
    *("environment_config.tool_format", "environment_config.history"),
    *("environment_config.max_turns", "environment_config.max_turn_tokens"),
    "environment_config.max_result_tokens",
)
"""Keys that must be equal in both jobs."""


def spool_of(config: RunConfig) -> Spool:
    """Open the spool folder of the jobs.

    Raises:
        SpoolError: It cannot be created.
    """
    asked = config.spool_config
    most = asked.max_records_mib
    limits = SpoolLimits(
        lease_seconds=asked.lease_seconds,
        poll_seconds=asked.poll_seconds,
        max_bytes=None if most is None else most << 20,
    )
    return Spool(Path(str(asked.folder)).resolve(), limits)


def agreed(config: RunConfig, data: RunData) -> dict[str, Any]:
    """Return the values that must be equal in both jobs."""
    prompts = xxhash.xxh3_128()
    for prompt in data.train.prompts:
        prompts.update(f"{prompt.uid} {prompt.token_ids} {prompt.answer!r}\n".encode())
    every = recorded_config(config)
    keys = (key for key in every if any(f"{key}.".startswith(f"{each}.") for each in _AGREED))
    return {
        "version of mindrl": version("mindrl"),
        "weights in actor_config.load": fingerprint(Path(config.actor_config.load)),
        "prompts": prompts.hexdigest(),
        **{key: every[key] for key in keys},
        **{f"{CONTENT}{key}": found for key, found in shared_prints(config).items()},
    }


def train_job(plan: RunPlan, platform: Platform, run_dir: Path) -> None:
    """Train on the responses of rollout jobs, to the last step.

    Raises:
        SpoolError: The spool belongs to other jobs.
        OutputError: Another train job uses it.
        MindrlError: As in `train`.
    """
    config, spool = plan.config, spool_of(plan.config)
    commits = Commits(RunFolder(run_dir.resolve()).checkpoints)
    with _part_of(spool, "train", "the train job") as leases:
        spool.agree(agreed(config, read_data(config)))
        _check_checkpoints(spool, commits)

        def source(trainer: PolicyTrainer) -> GeneratedGroups:
            notify = trainer.run_log.warn
            reader = RecordReader(
                spool=spool, leases=leases, notify=notify, waits=config.spool_config.waits
            )
            return spool_source(
                config,
                trainer.answering,
                reader,
                committed=lambda: trainer.checkpoints.committed,
                warn=notify,
            )

        train(plan, platform, run_dir, source=source)
        last = config.megatron_training.train_iters
        spool.note(SpoolProgress(gathering=last, confirmed=last, done=True))
        spool.clear()


def _check_checkpoints(spool: Spool, commits: Commits) -> None:
    """Refuse a train job that has lost the checkpoints of a spool's earlier steps.

    A wrong run folder, or a disk that is not mounted, looks like this.
    """
    confirmed = spool.progress().confirmed
    if confirmed and not commits.steps():
        raise SpoolError(
            f"{spool.root} is at step {confirmed}, but {commits.root} has no checkpoint to "
            "continue from: restore the run folder of the train job, or start a new run with "
            "another spool_config.folder"
        )


def rollout_job(plan: RunPlan, platform: Platform, run_dir: Path) -> None:
    """Generate and score the train job's data, until it is done.

    Raises:
        SpoolError: The spool belongs to other jobs.
        OutputError: Another process does this job.
        MindrlError: Workers or rewards fail.
    """
    config, folder = plan.config, RunFolder(run_dir.resolve())
    spool = spool_of(config)
    configure_logging(folder.logs / "driver.log")
    with _part_of(spool, spool.rollout_name(folder.root), "a rollout job") as leases:
        data = read_data(config)
        say(*data_lines(data))
        warn_of_data(config, data)
        forget_other_spool(folder, spool.agree(agreed(config, data)))
        console = StepConsole(config.megatron_training.train_iters)
        files = RunFiles(folder, {"actor": folder.root / "model"}, console)
        duties = Duties(spool=spool, leases=leases)
        # A rollout job has no timelines; without a handler the signal would end it.
        with trace_requests(lambda: None), interrupts_unwrapped(), console:
            _roll_out(Attempts(plan, platform, data, files), duties)


def forget_other_spool(folder: RunFolder, spool_id: str) -> None:
    """Make a rollout job start anew in a run folder of another spool: its records are removed.

    Raises:
        OutputError: A file cannot be read or removed.
    """
    known = folder.spool
    with output_errors(known):
        if not known.is_file() or known.read_text("utf-8") != spool_id:
            # A job without metrics starts at its first step, and removes all records.
            folder.metrics.unlink(missing_ok=True)
            replace_file(known, spool_id.encode("ascii"))


def _roll_out(attempts: Attempts, duties: Duties) -> None:
    """Generate all records that are due; if a worker is lost, new workers continue."""
    files = attempts.files
    restarts = Restarts(
        most=attempts.plan.config.rl_config.max_restarts,
        path=files.folder.faults,
        notify=files.console.note,
        checkpoint_step=0,
    )
    records = Counter[str]()
    with attempts.services() as services:
        while not _generate(attempts, services, duties, records, restarts):
            pass


def _generate(
    attempts: Attempts,
    services: Services,
    duties: Duties,
    records: Counter[str],
    restarts: Restarts,
) -> bool:
    """Start workers and generate; return False if one is lost and a restart is left."""
    files, config = attempts.files, attempts.plan.config
    with attempts.on_record(None, restarts) as run_log:
        try:
            with (
                attempts.policy_trainer(services, None, run_log) as trainer,
                stop_requests(config.rl_config.grace_seconds) as requests,
            ):
                services.cluster.calls.is_hurried = requests.is_requested
                notify = files.console.note
                loop = SpoolRollouts(duties=duties, trainer=trainer, notify=notify, records=records)
                loop.run(requests)
        except WorkerDiedError as error:
            if not attempts.has_started:
                raise
            # A written record is progress, as a checkpoint is in training.
            restarts.after(error, records["written"], checkpoint_step=records["written"])
            return False
        run_log.summary.status = "completed"
        return True


@contextmanager
def _part_of(spool: Spool, name: str, what: str) -> Iterator[Leases]:
    """Take part in a spool, as the only job with this name.

    Raises:
        OutputError: Another job has the name; it may end.
    """
    with spool.leases(what) as leases:
        if (other := leases.take_or_wait(name)) is not None:
            raise OutputError(f"{spool.root} already has this job: {other}")
        yield leases
