"""Loop of a rollout job: answers requests, scores the responses, and writes them to the spool."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from mindrl.errors import ModelError
from mindrl.observability.metrics import Metrics
from mindrl.spool.duties import Duties, Duty
from mindrl.spool.files import wait_for_room
from mindrl.spool.folder import Spool
from mindrl.spool.records import Record
from mindrl.spool.requests import SpoolRequest
from mindrl.spool.weights import Weights
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.rollout_files import packed
from mindrl.trainer.source.generation import InTurns
from mindrl.trainer.source.group import OpenGroup, PoolState
from mindrl.trainer.source.interface import Gathered
from mindrl.trainer.source.pool import GroupPool
from mindrl.trainer.source.spool import requested_prompts, response_ids
from mindrl.trainer.weight_probe import loaded_gap


@dataclass(kw_only=True)
class SpoolRollouts:
    """Runs until the train job is done, or this job must end."""

    duties: Duties
    trainer: PolicyTrainer
    """Trainer of a run without training: its engines, its prompts in order, its rewards."""
    notify: Callable[[str], None]
    records: Counter[str]
    """Number of records `written`."""
    weights: Weights | None = None
    """Weights of the engines."""
    gap: Metrics = field(default_factory=dict)
    """Log-prob gap of the engines after loading these weights, if expected values exist."""

    pool: GroupPool = field(init=False)

    def __post_init__(self) -> None:
        """Create the pool of the request that is answered."""
        self.pool = GroupPool(self.trainer.config, self.trainer.answering)

    @property
    def spool(self) -> Spool:
        """The spool shared with the train job."""
        return self.duties.spool

    def run(self, check_interrupt: Callable[[], None]) -> None:
        """Answer requests until the end.

        Raises:
            StopRequestedError: The job was asked to stop.
            MindrlError: Workers or rewards fail.
        """
        spool, said = self.spool, ""
        while not spool.progress().done and not spool.has_signal("drain"):
            check_interrupt()
            spool.check_interrupt()
            duty = self.duties.take()
            if duty is not None:
                self._do(duty, check_interrupt)
                continue
            if not self.trainer.config.spool_config.waits:
                return
            if self.duties.why_none != said:
                said = self.duties.why_none
                self.notify(said)
            spool.wait(check_interrupt)

    def _do(self, duty: Duty, check_interrupt: Callable[[], None]) -> None:
        try:
            if self._load(duty.weights):
                record = self._drawn(duty, check_interrupt)
                write = partial(self.spool.records.put, record)
                wait_for_room(write, self.notify, partial(self.spool.wait, check_interrupt))
                self.records["written"] += 1
        finally:
            self.duties.finish(duty)

    def _load(self, weights: Weights) -> bool:
        """Load weights into the engines; return False if they were just replaced or removed."""
        if self.weights is not None and self.weights.folder == weights.folder:
            return True
        self.weights = None
        try:
            if self.trainer.config.generate_config.verify_weights != "off":
                weights.verify()
            self.trainer.workers.load_weights(Path(weights.folder), weights.version)
        except (OSError, ModelError):
            if self.spool.weights.find(weights.version) == weights:
                raise
            return False
        self.weights = weights
        temperature = self.trainer.config.generate_config.sampling_config.temperature
        self.gap = loaded_gap(self.trainer.workers, weights.known, temperature)
        return True

    def _drawn(self, duty: Duty, check_interrupt: Callable[[], None]) -> Record:
        trainer, request, step = self.trainer, duty.request, duty.request.step
        asked, answered = requested_prompts(trainer.answering, request)
        with trainer.timer("step"):
            groups = self._answered(request, check_interrupt)
            rollouts = self.pool.rollouts(step, groups, with_failed=True)
            with trainer.timer("reward"):
                # The train job adds the scores that do not come from functions.
                rules = trainer.rewards.by_rules(asked, rollouts)
            rating = trainer.rewards.compute(asked, rollouts, blocking=True, known=lambda: rules)
            talks = self.pool.conversations(groups, with_failed=True)
            gathered = Gathered(
                prompts=asked, rollouts=rollouts, rating=rating, conversations=talks
            )
            metrics, batch = trainer.rate(step, gathered)
        spent = trainer.spent(metrics)
        spent |= {"spool/part": float(request.part), "spool/weights": float(request.version)}
        spent, failures = spent | self.gap, dict[str, int]()
        if (turns := self.pool.turns) is not None:
            spent |= turns.metrics(groups)
            failures = turns.taken_failures()
            for reason, count in failures.items():
                self.notify(f"step {step}: {count} conversation(s) failed: {reason}")
        samples = batch.samples(range(min(len(batch.rewarded.responses), trainer.rl.log_samples)))
        trainer.run_log.step(step, metrics | spent, samples)
        return Record(
            prompts=request.prompts,
            weights=duty.weights.name,
            ids=tuple(response_ids(asked, answered, self.pool.samples)),
            content=packed(step, replace(batch, rewarded=rules, conversations=None)),
            gap=self.gap,
            conversations=tuple(map(asdict, talks.dialogues)) if talks else (),
            failures=failures,
        )

    def _answered(
        self, request: SpoolRequest, check_interrupt: Callable[[], None]
    ) -> list[OpenGroup]:
        """Return the complete groups of a request, sampled as one job samples them in its step."""
        pool, step, prompts = self.pool, request.step, request.prompts
        pool.load(PoolState(next_prompt=0))
        pool.skip(step, request.step_first, prompts.first - request.step_first)
        pool.start(step, prompts.end - prompts.first)
        InTurns(pool=pool, round_steps=None).generate(step, all, check_interrupt)
        return pool.take(range(len(pool.groups)))
