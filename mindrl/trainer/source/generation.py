"""Generation for the open responses of a pool, and engines that work while the trainer waits."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from mindrl.batch.rollouts import Rollouts
from mindrl.observability.metrics import Metrics
from mindrl.trainer.engine_rounds import Completed, RoundEnds
from mindrl.trainer.reward_manager import Rewarded
from mindrl.trainer.source.conversing import Conversing
from mindrl.trainer.source.group import OpenGroup
from mindrl.trainer.source.group_ratings import GroupRatings
from mindrl.trainer.source.pool import GroupPool
from mindrl.trainer.weight_probe import PROBE_RESPONSES

IsEnough = Callable[[Sequence[bool]], bool]
"""Returns whether enough groups are complete, given a bool for each, in the order of the pool."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of a step's generation."""

    metrics: Metrics = field(default_factory=dict)
    probed: Rollouts | None = None
    """Tokens of the step's weights that measure their log-prob gap, if the step may train on older
    tokens only."""
    gap: Metrics = field(default_factory=dict)
    """Log-prob gap measured by the engines that sampled the step's responses."""


class Generation(ABC):
    """Extends the incomplete responses of a pool."""

    runs_ahead = False
    """Whether generation continues while the trainer trains."""
    ratings: GroupRatings | None = None
    """Scores complete groups during the generation. None: they are scored after it."""

    @abstractmethod
    def begin(self, step: int, check_interrupt: Callable[[], None]) -> None:
        """Begin a step with the weights after the previous step."""

    @abstractmethod
    def generate(self, step: int, is_enough: IsEnough, check_interrupt: Callable[[], None]) -> None:
        """Generate until there are enough complete groups."""

    @abstractmethod
    def end(
        self, step: int, trained: Sequence[OpenGroup], check_interrupt: Callable[[], None]
    ) -> Measured:
        """End the generation of a step, which trains on `trained`; engines may run ahead."""

    def publish(self, step: int) -> Metrics:  # noqa: ARG002
        """Publish the weights after a step to engines that run ahead; others fetch them."""
        return {}

    def load(self, step: int) -> None:  # noqa: ARG002
        """Continue after a step with the groups that the pool has loaded."""
        if self.ratings is not None:
            self.ratings.forget()

    def rewarded(self, groups: Sequence[OpenGroup]) -> Callable[[], Rewarded] | None:
        """Return a function that waits for rule-based scores; None if they are computed later."""
        if self.ratings is None:
            return None
        self.ratings.begin(groups)
        return partial(self.ratings.take, groups)


@dataclass(kw_only=True)
class InTurns(Generation):
    """All engines generate, while the trainer waits."""

    pool: GroupPool
    round_steps: int | None
    """Engine steps between checks whether enough groups are complete. None completes all, from
    their prompts."""
    ratings: GroupRatings | None = None
    rounds: int = field(default=0, init=False)

    def begin(self, step: int, check_interrupt: Callable[[], None]) -> None:  # noqa: ARG002
        """Reset the count of rounds; the weights are fetched with the first request."""
        self.rounds = 0

    def generate(
        self,
        step: int,
        is_enough: IsEnough,
        check_interrupt: Callable[[], None],
    ) -> None:
        """Generate for all incomplete responses, if there are any."""
        pool, answering = self.pool, self.pool.answering
        if pool.turns is not None:
            self._converse(step, is_enough, check_interrupt)
            pool.fetch_routes()
            return
        if not (rows := pool.incomplete()):
            return
        added = set[int]()

        def add(completed: Mapping[int, Completed]) -> None:
            for at, (tokens_N, logprobs_N, finished) in completed.items():
                pool.extend(rows[at], (tokens_N, logprobs_N), step=step, finished=finished)
            added.update(completed)
            if self.ratings is not None:
                self.ratings.begin()

        on_completed = None if self.ratings is None else add
        if self.round_steps is None:
            prompts = [pool.prompt(number) for number in pool.groups]
            rollouts = answering.roll_out(prompts, step, pool.used_prompts(), on_completed)
            responses = rollouts.responses()
        else:
            requests = [pool.request(row) for row in rows]

            def is_over(complete: Collection[int]) -> bool:
                self.rounds += 1
                open_ = {row.group for at, row in enumerate(rows) if at not in complete}
                return is_enough([number not in open_ for number in pool.groups])

            with answering.rewards.timer("rollout"):
                responses = answering.workers.generate_until(
                    requests,
                    answering.sampling,
                    is_over,
                    rounds=RoundEnds(self.round_steps),
                    on_completed=on_completed,
                )
        pool.fetch_routes()
        each = zip(responses.each(), responses.finished_B.tolist(), strict=True)
        add(
            {
                at: Completed(*drawn, ended)
                for at, (drawn, ended) in enumerate(each)
                if at not in added
            }
        )

    def _converse(
        self, step: int, is_enough: IsEnough, check_interrupt: Callable[[], None]
    ) -> None:
        """Generate turns, each as soon as its environment has answered the one before."""
        pool, answering = self.pool, self.pool.answering
        assert pool.turns is not None, "conversations have environments"
        talks = Conversing(
            pool=pool,
            step=step,
            check_interrupt=check_interrupt,
            lock_step=pool.turns.config.lock_step,
        )

        def is_over(_: Collection[int]) -> bool:
            self.rounds += 1
            return talks.is_over() or is_enough(pool.complete_groups())

        with answering.rewards.timer("rollout"):
            if not (requests := talks.first()):
                return
            responses = answering.workers.generate_until(
                requests,
                answering.sampling,
                is_over,
                rounds=RoundEnds(
                    self.round_steps or answering.round_steps, together=talks.lock_step
                ),
                next_turns=talks.next_turns,
            )
            talks.end(responses)

    def end(
        self,
        step: int,
        trained: Sequence[OpenGroup],
        check_interrupt: Callable[[], None],
    ) -> Measured:
        """Return the rounds, and a probe if the step trains only on older tokens."""
        check_interrupt()
        if self.round_steps is None:
            return Measured()
        is_fresh = (self.pool.ages(step, trained) == 0).any()
        probed = None if is_fresh else self.pool.sampled_in(step, PROBE_RESPONSES)
        rounds = {"staleness/rounds": float(self.rounds)}
        return Measured(metrics=rounds | self.pool.staleness(step, trained), probed=probed)
