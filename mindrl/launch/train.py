"""The composition root of a training run."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from mindrl.algorithms.length_penalty import LengthPenalty
from mindrl.batch.balance import sequence_costs
from mindrl.checkpoint.commits import Checkpoint, Commits
from mindrl.cluster.ray_cluster import RayCluster
from mindrl.cluster.worker_group import WorkerGroup
from mindrl.config.resume import resume_findings
from mindrl.config.run import RunConfig, with_absolute_paths
from mindrl.data.run_data import RunData, data_lines, read_data
from mindrl.errors import CheckpointError, InterruptedRunError
from mindrl.launch.interrupts import interrupts_unwrapped, stop_requests
from mindrl.launch.memory_watch import MemoryWatch
from mindrl.launch.provenance import provenance
from mindrl.models.decoder import forward_cost
from mindrl.observability.console import StepConsole
from mindrl.observability.logs import configure_logging
from mindrl.observability.output_files import forget_later_steps
from mindrl.observability.summary import render_summary
from mindrl.observability.terminal import note, print_rows, say
from mindrl.observability.trackers import JsonlTracker, TensorboardTracker, Tracker
from mindrl.platform.device import Platform
from mindrl.preflight.derived_numbers import derived_numbers, logprob_gap_limit
from mindrl.preflight.run_folders import check_folders, export_folders
from mindrl.preflight.run_shardings import RunPlan
from mindrl.rewards.scorer import RewardScorer, try_rewards
from mindrl.trainer.colocated_actor import ColocatedActor, Ranks
from mindrl.trainer.grpo_trainer import GrpoTrainer
from mindrl.trainer.ppo_trainer import PpoTrainer
from mindrl.trainer.reward_manager import RewardSources
from mindrl.trainer.rollout_files import RolloutFiles
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary

logger = logging.getLogger(__name__)

_WORKER_FACTORY = "mindrl.launch.worker:build_worker"


def train(plan: RunPlan, platform: Platform, run_dir: Path) -> dict[str, object]:
    """Train with the algorithm of a checked run, export included; returns the summary.

    `run_dir` takes what the run leaves behind.

    Raises:
        MindrlError: A file or a folder does not serve, or the run failed. Once training has
            begun, the summary is written and shown however the run ends.
    """
    config, rl, folder = plan.config, plan.config.rl_config, RunFolder(root=run_dir.resolve())
    goes_on, resumed = folder.checkpoints.is_dir(), _checkpoint(config, folder)
    exports = export_folders(config, folder.root, goes_on=goes_on)
    check_folders(plan, folder.root, exports)
    configure_logging(folder.logs / "driver.log", level=logging.INFO)
    data = read_data(config)
    say(*data_lines(data))
    try_rewards(rl.verifier_function, rl.verifier_timeout, data.train.prompts[0].answer)
    print_rows(derived_numbers(config, platform).items())
    summary = RunSummary(exports=exports, provenance=provenance(config))
    console = StepConsole(config.megatron_training.train_iters)
    trackers: list[Tracker] = [JsonlTracker(folder.metrics)]
    if rl.use_tensorboard:
        first = 1 if resumed is None else resumed.step + 1
        trackers.append(TensorboardTracker(folder.tensorboard, first))
    run_log = RunLog(folder, summary, console, trackers)
    workers = _workers(plan, platform, folder.logs, console)
    try:
        with interrupts_unwrapped(), console, workers as (actor, scorer):
            if rl.memory_timeline_steps:
                run_log.note_memory = MemoryWatch(actor.memory_plan(), folder.root).note
            trainer = _trainer(plan, data, actor, scorer, run_log)
            if resumed is not None:
                state = resumed.state()
                actor.restore(resumed.folder, state["updates"])
                trainer.resume(resumed.step, state)
                console.note(f"goes on behind step {resumed.step}, from {resumed.folder}")
            with stop_requests() as heed:
                trainer.run(heed)
        summary.status = "completed"
    except InterruptedRunError:
        summary.status = "interrupted"
        raise
    finally:
        record = run_log.close()
        console.show(render_summary(record), folds=False)
    return record


@contextmanager
def _workers(
    plan: RunPlan, platform: Platform, logs: Path, console: StepConsole
) -> Iterator[tuple[ColocatedActor, RewardScorer | None]]:
    """Start the reward processes, the cluster and the workers; end them in reverse order."""
    config, rl = plan.config, plan.config.rl_config
    with ExitStack() as stack:
        scorer = None
        if rl.verifier_function:
            scorer = stack.enter_context(RewardScorer(rl))
            scorer.warm_up()
        console.note(f"starting {config.world_size} worker(s), logs in {logs}")
        cluster = RayCluster(
            platform,
            devices=config.world_size,
            devices_per_node=rl.actor_resource.npus_per_node,
            timeout_seconds=rl.worker_start_timeout_seconds,
        )
        cluster.start()
        stack.callback(cluster.stop)
        console.note("Ray is up; starting the workers' processes")
        whole = replace(plan, config=with_absolute_paths(config))
        group = WorkerGroup(cluster, whole, logs, _WORKER_FACTORY, console.note)
        stack.callback(group.stop)
        console.note("the models are loaded")
        yield colocated_actor(group, plan), scorer


def _trainer(
    plan: RunPlan,
    data: RunData,
    actor: ColocatedActor,
    scorer: RewardScorer | None,
    run_log: RunLog,
) -> GrpoTrainer | PpoTrainer:
    """Put the parts of the algorithm together."""
    config, rl, penalty = plan.config, plan.config.rl_config, None
    if rl.overlong_buffer_enable:
        penalty = LengthPenalty(
            longest=config.generate_config.sampling_config.max_tokens,
            buffer=rl.overlong_buffer,
            factor=rl.overlong_buffer_penalty_factor,
        )
    rewards = RewardSources(
        scorer=scorer,
        reward_model=actor if config.reward_config else None,
        reward_model_weight=config.reward_config.weight if config.reward_config else 0.0,
        length_penalty=penalty,
    )
    gap = logprob_gap_limit(config, has_experts=plan.models["actor"].moe is not None)
    kind = PpoTrainer if config.critic_config else GrpoTrainer
    return kind(config, data, actor, rewards, run_log, max_logprob_gap=gap)


def _checkpoint(config: RunConfig, folder: RunFolder) -> Checkpoint | None:
    """Return what the run of a folder goes on from, and forget what it did behind that.

    None where it begins.

    Raises:
        CheckpointError: The run must not go on, or not with this configuration, or none of the
            checkpoints is whole.
    """
    if not folder.checkpoints.is_dir():
        return None
    commits, training = Commits(folder.checkpoints), config.megatron_training
    if training.resume == "never":
        raise CheckpointError(
            f"megatron_training.resume=never: {commits.root} holds checkpoints of an earlier run; "
            "name another run folder (hydra.run.dir), or go on from them with auto"
        )
    found, problems = commits.newest_whole()
    for problem in problems:
        note(f"{problem}; this checkpoint is passed over")
    if found is None and problems:
        raise CheckpointError(f"{commits.root}: none of {len(problems)} checkpoints is whole")
    if found and (findings := [*resume_findings(found.state()["config"], config)]):
        raise CheckpointError("\n".join(map(str, findings)))
    newest = found.step if found else -1
    for log in (folder.metrics, folder.samples, folder.evaluations):
        forget_later_steps(log, newest)
    RolloutFiles(folder.rollouts).forget_later(newest)
    return found


def colocated_actor(group: Ranks, plan: RunPlan) -> ColocatedActor:
    """Deal batches by the layouts of a run: by what sequences cost the trainer, or by count."""
    costs = None
    if plan.config.rl_config.use_dynamic_bsz:
        linear, quadratic = forward_cost(plan.models["actor"])
        costs = partial(sequence_costs, linear=linear, quadratic=quadratic)
    seed = plan.config.megatron_training.seed
    return ColocatedActor(group, plan.layouts, plan.rollout, seed=seed, costs=costs)
