"""Attempts at a run: a lost worker ends one, and new workers start the next."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mindrl.cluster.apart_engines import ApartEngines
from mindrl.cluster.call_limits import CallLimits
from mindrl.cluster.prefork import PreforkServer
from mindrl.cluster.ray_cluster import RayCluster
from mindrl.cluster.replicas import ReplicaFleet
from mindrl.cluster.worker_group import Crew, WorkerGroup
from mindrl.config.changed import with_absolute_paths
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.data.run_data import RunData
from mindrl.errors import (
    ClusterError,
    DamagedCheckpointError,
    InterruptedRunError,
    ReshardError,
    WorkerDiedError,
)
from mindrl.launch.beginning import Beginning, beginning, first_step
from mindrl.launch.callbacks import Callbacks
from mindrl.launch.environments import environments_of
from mindrl.launch.interrupts import interrupts_unwrapped, stop_requests
from mindrl.launch.memory_watch import MemoryWatch
from mindrl.launch.parts import Raters, loop_of, worker_handle
from mindrl.launch.plan_record import plan_record
from mindrl.launch.provenance import provenance
from mindrl.launch.restarts import Restarts
from mindrl.launch.reward_trials import reward_inputs
from mindrl.launch.servers import RunServers
from mindrl.launch.shrink import shrunk
from mindrl.observability.console import StepConsole
from mindrl.observability.output_files import (
    forget_later_steps,
    forget_unfinished,
    write_json_atomically,
)
from mindrl.observability.step_traces import StepTraces
from mindrl.observability.tensorboard import TensorboardTracker
from mindrl.observability.trackers import JsonlTracker, Tracker
from mindrl.platform.device import Platform
from mindrl.preflight.derived_numbers import derived_numbers
from mindrl.preflight.run_shardings import RunPlan
from mindrl.report.live_page import LivePage
from mindrl.rewards.scorer import RewardScorer
from mindrl.tracking.opened import opened_trackers
from mindrl.trainer.inputs import Prints
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.rollout_files import RolloutFiles
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary
from mindrl.trainer.source.interface import Gathered, Source
from mindrl.trainer.training_loop import TrainingLoop
from mindrl.trainer.worker_handle import WorkerHandle
from mindrl.workers.calls import Workers

_WORKER_FACTORY = "mindrl.launch.worker:build_worker"
_ROLLOUT_ONLY_FACTORY = "mindrl.launch.rollout_worker:build_rollout_only_worker"
_ROLLOUT_FACTORY = "mindrl.launch.rollout_worker:build_rollout_worker"


@dataclass(frozen=True)
class RunFiles:
    """Output of a run."""

    folder: RunFolder
    exports: Mapping[Role, Path]
    console: StepConsole
    callbacks: Callbacks = field(default_factory=Callbacks)
    traces: StepTraces | None = None
    inputs: Prints = field(default_factory=dict)
    """Fingerprints of the files that the run reads."""

    def open(self, config: RunConfig, found: Beginning | None, *, is_again: bool = False) -> RunLog:
        """Open the files of a run that continues from a checkpoint; None starts it.

        Records of later steps are removed, and so are temporary files of a killed run. After a
        fault trackers continue: repeated steps have the same numbers.
        """
        for folder in (self.folder.root, self.folder.rollouts):
            forget_unfinished(folder)
        first = first_step(config, self.folder, found)
        logs = [self.folder.metrics, self.folder.samples, self.folder.evaluations]
        for log in (*logs, *self.folder.eval_sets.glob("*.jsonl")):
            for line in forget_later_steps(log, first - 1):
                text = f"{log}, line {line}: not a record with an integer step; the line is kept"
                self.console.note(f"warning: {text} and ignored")
        RolloutFiles(self.folder.rollouts).forget_later(first - 1)
        trackers: list[Tracker] = [JsonlTracker(self.folder.metrics)]
        if config.rl_config.use_tensorboard:
            trackers.append(TensorboardTracker(self.folder.tensorboard, first))
        trackers += opened_trackers(
            config,
            self.folder.trackers,
            metrics=self.folder.metrics,
            logs=self.folder.logs,
            goes_on=first > 0 or is_again,
        )
        summary = RunSummary(exports=self.exports, provenance=provenance(config))
        if config.rl_config.report:
            page = LivePage(self.folder.root)
            trackers.append(page)
            summary.report = page.path
        run_log = RunLog(self.folder, summary, self.console, [*trackers, self.callbacks])
        run_log.inputs = self.inputs
        if self.traces is not None:
            self.traces.forget_later(first - 1)
            run_log.traced = partial(self.traces.steps, run_log.keep)
        return run_log


@dataclass(frozen=True)
class Services:
    """The cluster and the reward processes, which outlive the workers."""

    cluster: RayCluster
    raters: Raters


@dataclass
class Attempts:
    """A run that is resumed from its newest checkpoint whenever workers are lost."""

    plan: RunPlan
    platform: Platform
    data: RunData
    files: RunFiles
    record: dict[str, object] = field(default_factory=dict)
    """Summary of the last attempt."""
    has_started: bool = False
    """Whether workers have started once; later failures may not recur and are retried."""
    limits: CallLimits | None = None
    """Durations of worker calls so far, passed on to new workers."""
    source: Callable[[PolicyTrainer], Source[Gathered]] | None = None
    """Creates the source of step data, if it is not the trainer's default."""
    prefork: PreforkServer | None = None
    """Process that imports what workers need, and forks them."""
    damaged: dict[Path, str] = field(default_factory=dict)
    """Checkpoints in which workers found damage, with the problem."""
    started: float | None = None
    """Start of the run on the clock of its summary, which includes the cost of faults."""

    def run(self, found: Beginning | None) -> None:
        """Train from a checkpoint, or from the beginning, to the last step.

        Raises:
            MindrlError: The run failed, was asked to stop, or lost workers too often.
        """
        config, console = self.plan.config, self.files.console
        restarts = Restarts(
            most=config.rl_config.max_restarts if config.megatron_training.save_interval else 0,
            path=self.files.folder.faults,
            notify=console.note,
            checkpoint_step=found.step if found else 0,
        )
        console.note(f"starting {config.devices} worker(s), logs in {self.files.folder.logs}")
        with self.services() as services:
            is_lost = True
            while is_lost:
                found, is_lost = self._attempt(services, found, restarts)

    @contextmanager
    def on_record(self, found: Beginning | None, restarts: Restarts) -> Iterator[RunLog]:
        """Close the log of an attempt, even if the attempt fails."""
        run_log = self.files.open(self.plan.config, found, is_again=restarts.count > 0)
        run_log.summary.restarts = restarts.count
        try:
            yield run_log
        except InterruptedRunError:
            is_own = self.files.callbacks.stopped_after is not None
            run_log.summary.status = "stopped" if is_own else "interrupted"
            raise
        finally:
            self.record = run_log.close()

    @contextmanager
    def once(self, found: Beginning | None, run_log: RunLog) -> Iterator[PolicyTrainer]:
        """Start workers with the state of a checkpoint, for a program that does not retry."""
        workers, logs = self.plan.config.devices, self.files.folder.logs
        self.files.console.note(f"starting {workers} worker(s), logs in {logs}")
        with (
            interrupts_unwrapped(),
            self.services() as services,
            self.policy_trainer(services, found, run_log) as trainer,
        ):
            yield trainer

    @contextmanager
    def policy_trainer(
        self, services: Services, found: Beginning | None, run_log: RunLog
    ) -> Iterator[PolicyTrainer]:
        """Start workers with the state of a checkpoint on a cluster that outlives them."""
        with self._trainer(services, found, run_log) as trainer:
            assert isinstance(trainer, PolicyTrainer), "its program refuses other objectives"
            yield trainer

    def _attempt(
        self, services: Services, found: Beginning | None, restarts: Restarts
    ) -> tuple[Beginning | None, bool]:
        """Continue from a checkpoint; return the next one to continue from and whether to retry."""
        with self.on_record(found, restarts) as run_log:
            try:
                self._train(services, found, restarts, run_log)
            except (WorkerDiedError, ReshardError) as error:
                if not self.has_started:
                    raise
                newest = self._beginning()
                done = run_log.summary.steps
                restarts.after(error, done, checkpoint_step=newest.step if newest else 0)
                return newest, True
            except DamagedCheckpointError as error:
                assert found is not None, "only a checkpoint is verified"
                self.damaged[found.folder] = str(error)
                newest = self._beginning()
                restarts.checkpoint_step = newest.step if newest else 0
                return newest, True
            run_log.summary.status = "completed"
        return None, False

    def _beginning(self) -> Beginning | None:
        """Return the checkpoint to continue from after an attempt, if any."""
        files = self.files
        return beginning(self.plan.config, files.folder, files.inputs, self.damaged)

    def _train(
        self,
        services: Services,
        found: Beginning | None,
        restarts: Restarts,
        run_log: RunLog,
    ) -> None:
        config = self.plan.config
        with interrupts_unwrapped(), self._trainer(services, found, run_log) as trainer:
            if config.watched_steps:
                folder, memory = self.files.folder, trainer.workers.memory_plan()
                record = plan_record(self.plan, self.platform, memory)
                run_log.keep(folder.plan, lambda: write_json_atomically(folder.plan, record))
                run_log.note_memory = MemoryWatch(memory, folder.root).note
            if found is not None:
                self.files.console.note(str(found))
            run_log.of_next_step = took = restarts.metrics()
            self.files.console.note(f"workers ready after {took['seconds/start']:.1f} s")
            self.started = run_log.summary.started = self.started or run_log.summary.started
            with stop_requests(config.rl_config.grace_seconds) as signals:

                def check_interrupt() -> None:
                    signals()
                    self.files.callbacks.check_interrupt()

                services.cluster.calls.is_hurried = signals.is_requested
                trainer.run(check_interrupt)
            # No step follows that would raise the error of the last step's callbacks.
            self.files.callbacks.require()

    def _make_ready(self, services: Services) -> None:
        """Start services that outlive the workers; after a fault reserve devices again.

        Raises:
            ClusterError: There are too few devices.
        """
        cluster, rl, notify = services.cluster, self.plan.config.rl_config, self.files.console.note
        if services.raters.scorer is not None:
            services.raters.scorer.warm_up()
        if not self.has_started:
            self._start(cluster)
            return
        try:
            cluster.reserve_again(rl.device_wait_seconds)
        except ClusterError as error:
            if rl.on_device_loss == "wait":
                raise
            notify(f"warning: {error}")
            self.plan = shrunk(self.plan, self.platform, cluster.present())
            cluster.devices = self.plan.config.world_size
            numbers = derived_numbers(self.plan.config, self.platform)
            sides = [key for key in ("training", "rollout") if key in numbers]
            layouts = ", ".join(f"{key} {numbers[key]}" for key in sides)
            devices = f"{cluster.devices} device(s)"
            notify(f"rl_config.on_device_loss=shrink: the run continues on {devices}: {layouts}")
            cluster.reserve_again(rl.device_wait_seconds)

    def _start(self, cluster: RayCluster) -> None:
        """Start Ray, while the prefork server imports what workers need."""
        notify, stage, began = self.files.console.note, self.files.console.stage, time.monotonic()
        stage("starting Ray")
        cluster.start()
        notify(f"Ray is running ({time.monotonic() - began:.1f} s); starting the worker processes")
        if self.prefork is not None:
            stage("importing libraries for all workers")
            self.prefork.wait()
            if self.prefork.seconds is not None:
                seconds = f"{self.prefork.seconds:.1f} s"
                notify(f"libraries imported for all workers ({seconds}, in parallel)")
        stage("workers start")

    @contextmanager
    def _trainer(
        self, services: Services, found: Beginning | None, run_log: RunLog
    ) -> Iterator[TrainingLoop[Any, Any]]:
        """Start workers, and restore a checkpoint in them and their trainer."""
        self._make_ready(services)
        with self._workers(services.cluster) as actor:
            self.has_started = True
            trainer = loop_of(self.plan, self.data, actor, services.raters, run_log)
            if self.source is not None and isinstance(trainer, PolicyTrainer):
                trainer.source = self.source(trainer)
            actor.group.meanwhile = _meanwhile(trainer)
            if found is not None:
                self.files.console.stage("verifying the checkpoint")
                if problems := actor.verify_checkpoint(found.folder):
                    raise DamagedCheckpointError("\n".join(problems))
                actor.restore(found.folder, found.updates)
                trainer.resume(found.step, found.state)
            yield trainer

    @contextmanager
    def services(self) -> Iterator[Services]:
        """Provide cluster and reward processes; end them in reverse order."""
        config, rl = self.plan.config, self.plan.config.rl_config
        cluster = RayCluster(
            self.platform,
            devices=config.devices,
            devices_per_node=rl.actor_resource.npus_per_node,
            timeout_seconds=rl.worker_start_timeout_seconds,
            own_shares=config.placement.shares if config.is_apart else (),
            rollout_devices=config.devices - config.world_size,
            is_spread=config.is_spread,
            prefork=self.prefork,
            silence_seconds=rl.heartbeat_timeout_seconds,
        )
        weights = config.reward_weights
        rates = config.rolls_out and any(weights.values())
        inputs = reward_inputs(config, self.data, self.files.folder.logs / "rewards.log")
        scoring = RewardScorer(rl, weights, inputs) if rates else nullcontext()
        with scoring as scorer, environments_of(config, self.data) as environments:
            try:
                yield Services(cluster, Raters(scorer, environments))
            finally:
                cluster.stop()

    @contextmanager
    def _workers(self, cluster: RayCluster) -> Iterator[WorkerHandle]:
        """Start the workers of both sides in parallel, and end them."""
        config, logs = self.plan.config, self.files.folder.logs
        whole = replace(self.plan, config=with_absolute_paths(config))
        notify = self.files.console.note
        nodes = config.placement.nodes(0, config.world_size)
        with ExitStack() as stack:
            fleet = self._fleet(cluster, whole, stack) if config.is_apart else None
            if fleet is not None:
                stack.callback(fleet.stop)
            factory = _WORKER_FACTORY if config.learns else _ROLLOUT_ONLY_FACTORY
            crew = Crew(factory=factory, nodes=nodes, show=self.files.console.stage)
            group = WorkerGroup(cluster, whole, logs, crew, notify)
            stack.callback(group.stop)
            self.limits = group.limits = self.limits or group.limits
            engines = None
            if fleet is not None:
                fleet.wait_for_start()
                engines = ApartEngines(group, fleet)
            yield worker_handle(group, self.plan, engines, kind=self.platform.kind)

    def _fleet(self, cluster: RayCluster, whole: RunPlan, stack: ExitStack) -> ReplicaFleet:
        """Start the replicas of a separate rollout; their shared parts end with `stack`."""
        config, notify, ranks = whole.config, self.files.console.note, whole.replica.world_size
        logs, count = self.files.folder.logs, config.rollout_layout.replicas
        restarts = config.rl_config.max_restarts
        if config.generate_config.is_served:
            servers = RunServers.open(whole, self.platform, logs, notify)
            stack.callback(servers.close)
            return ReplicaFleet(servers.join, count, restarts, notify, servers.members())

        def start(number: int, meanwhile: Callable[[], None]) -> Workers:
            crew = Crew(
                factory=_ROLLOUT_FACTORY,
                nodes=config.placement.nodes(1 + number, ranks),
                name=f"rollout_{number}",
                meanwhile=meanwhile,
            )
            return WorkerGroup(cluster, whole, logs, crew, notify)

        return ReplicaFleet(start, count, restarts, notify)


def _meanwhile(trainer: TrainingLoop[Any, Any]) -> Callable[[], None]:
    """Return the function to call repeatedly while training processes are waited for."""

    def look() -> None:
        trainer.checkpoints.commit_written()
        trainer.workers.engines.look()

    return look
