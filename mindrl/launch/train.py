"""The composition root of a training run."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from mindrl.algorithms.length_penalty import LengthPenalty
from mindrl.batch.balance import sequence_costs
from mindrl.cluster.ray_cluster import RayCluster
from mindrl.cluster.worker_group import WorkerGroup
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig, with_absolute_paths
from mindrl.data.run_data import RunData, data_lines, read_data
from mindrl.errors import InterruptedRunError
from mindrl.launch.interrupts import interrupts_unwrapped, stop_requests
from mindrl.launch.memory_watch import MemoryWatch
from mindrl.launch.provenance import provenance
from mindrl.models.cost import forward_cost
from mindrl.observability.console import StepConsole
from mindrl.observability.logs import configure_logging
from mindrl.observability.summary import render_summary
from mindrl.observability.trackers import JsonlTracker, TensorboardTracker, Tracker
from mindrl.platform.device import Platform
from mindrl.preflight.derived_numbers import derived_numbers, logprob_gap_limit, render_numbers
from mindrl.preflight.run_folders import check_folders, export_folders
from mindrl.preflight.run_shardings import RunPlan
from mindrl.rewards.scorer import RewardScorer, try_rewards
from mindrl.trainer.colocated_actor import ColocatedActor, Ranks
from mindrl.trainer.grpo_trainer import GrpoTrainer
from mindrl.trainer.ppo_trainer import PpoTrainer
from mindrl.trainer.reward_manager import RewardSources
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary

logger = logging.getLogger(__name__)

_WORKER_FACTORY = "mindrl.launch.worker:build_worker"


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What is fixed before anything is started."""

    plan: RunPlan
    platform: Platform
    folder: RunFolder
    exports: Mapping[Role, Path]
    """Folder of each model that is trained."""
    data: RunData


def train(plan: RunPlan, platform: Platform, run_dir: Path) -> dict[str, object]:
    """Train with the algorithm of the configuration, export included.

    Args:
        plan: Of a run that was checked.
        platform: Its devices.
        run_dir: Takes what the run leaves behind.

    Returns:
        The summary.

    Raises:
        MindrlError: A file or a folder does not serve, or the run failed. Once training has
            begun, the summary is written and shown however the run ends.
    """
    config, run = plan.config, _prepare(plan, platform, run_dir)
    Console().print(render_numbers(derived_numbers(config, platform)))
    summary = RunSummary(exports=run.exports, provenance=provenance(config))
    console = StepConsole(config.megatron_training.train_iters)
    run_log = RunLog(run.folder, summary, console, _trackers(run))
    try:
        with interrupts_unwrapped(), console, _workers(run, console) as (actor, rewards):
            if config.rl_config.memory_timeline_steps:
                run_log.note_memory = MemoryWatch(actor.memory_plan(), run.folder.root).note
            trainer = _trainer(run, actor, rewards, run_log)
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


def _prepare(plan: RunPlan, platform: Platform, run_dir: Path) -> _Run:
    """Make the folders and read everything that needs no cluster."""
    config, folder = plan.config, RunFolder(root=run_dir.resolve())
    exports = export_folders(config, folder.root)
    check_folders(plan, folder.root, exports)
    configure_logging(folder.logs / "driver.log", level=logging.INFO)
    data = read_data(config)
    for line in data_lines(data):
        Console().print(line, markup=False, highlight=False, soft_wrap=True)
    rl = config.rl_config
    try_rewards(rl.verifier_function, rl.verifier_timeout, data.train.prompts[0].answer)
    return _Run(
        plan=plan,
        platform=platform,
        folder=folder,
        exports=exports,
        data=data,
    )


def _trackers(run: _Run) -> list[Tracker]:
    trackers: list[Tracker] = [JsonlTracker(run.folder.metrics)]
    if run.plan.config.rl_config.use_tensorboard:
        trackers.append(TensorboardTracker(run.folder.tensorboard))
    return trackers


@contextmanager
def _workers(
    run: _Run, console: StepConsole
) -> Iterator[tuple[ColocatedActor, RewardScorer | None]]:
    """Start the reward processes, the cluster and the workers; end them in reverse order."""
    config, rl = run.plan.config, run.plan.config.rl_config
    with ExitStack() as stack:
        scorer = None
        if rl.verifier_function:
            scorer = stack.enter_context(RewardScorer(rl))
            scorer.warm_up()
        console.note(f"starting {config.world_size} worker(s), logs in {run.folder.logs}")
        cluster = RayCluster(
            run.platform,
            devices=config.world_size,
            devices_per_node=rl.actor_resource.npus_per_node,
            timeout_seconds=rl.worker_start_timeout_seconds,
        )
        cluster.start()
        stack.callback(cluster.stop)
        console.note("Ray is up; starting the workers' processes")
        whole = replace(run.plan, config=with_absolute_paths(config))
        group = WorkerGroup(cluster, whole, run.folder.logs, _WORKER_FACTORY, console.note)
        stack.callback(group.stop)
        console.note("the models are loaded")
        yield colocated_actor(group, run.plan), scorer


def _length_penalty(config: RunConfig) -> LengthPenalty | None:
    rl = config.rl_config
    if not rl.overlong_buffer_enable:
        return None
    return LengthPenalty(
        longest=config.generate_config.sampling_config.max_tokens,
        buffer=rl.overlong_buffer,
        factor=rl.overlong_buffer_penalty_factor,
    )


def _trainer(
    run: _Run, actor: ColocatedActor, scorer: RewardScorer | None, run_log: RunLog
) -> GrpoTrainer | PpoTrainer:
    """Put the parts of the algorithm together."""
    config = run.plan.config
    rewards = RewardSources(
        scorer=scorer,
        reward_model=actor if config.reward_config else None,
        reward_model_weight=config.reward_config.weight if config.reward_config else 0.0,
        length_penalty=_length_penalty(config),
    )
    has_experts = run.plan.models["actor"].moe is not None
    max_gap = logprob_gap_limit(config, has_experts=has_experts)
    kind = PpoTrainer if config.critic_config else GrpoTrainer
    return kind(config, run.data, actor, rewards, run_log, max_logprob_gap=max_gap)


def colocated_actor(group: Ranks, plan: RunPlan) -> ColocatedActor:
    """Deal batches by the layouts of a run."""
    return ColocatedActor(
        group,
        plan.layouts,
        plan.rollout,
        seed=plan.config.megatron_training.seed,
        costs=_costs(plan),
    )


def _costs(plan: RunPlan) -> Callable[[Sequence[int]], Sequence[float]] | None:
    """Return what sequences cost the trainer; None where they are dealt by count."""
    if not plan.config.rl_config.use_dynamic_bsz:
        return None
    linear, quadratic = forward_cost(plan.models["actor"])
    return partial(sequence_costs, linear=linear, quadratic=quadratic)
