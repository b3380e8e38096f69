"""Groups of responses that are generated for a run, in every order of generation and training.

Runs in turns, one step off or asynchronous, with partial rollout, two jobs or dynamic sampling,
differ in the numbers of `PoolBounds`, in the generation and in the group filter.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from mindrl.observability.metrics import Metrics
from mindrl.trainer.reward_manager import Rating
from mindrl.trainer.source.bounds import PoolBounds
from mindrl.trainer.source.generation import Generation
from mindrl.trainer.source.group import OpenGroup, PoolState
from mindrl.trainer.source.group_filter import GroupFilter, ScoredGroups
from mindrl.trainer.source.interface import Gathered, Source
from mindrl.trainer.source.pool import GroupPool


class GeneratedGroups(Source[Gathered]):
    """Starts groups, waits for complete ones, and replaces those without a signal.

    A group is trained on, or found without a signal, at most `max_staleness` steps after the one
    that started it, and each response is used once. All decisions follow from the order of the
    data and from which responses are complete.
    """

    def __init__(
        self,
        pool: GroupPool,
        bounds: PoolBounds,
        generation: Generation,
        group_filter: GroupFilter | None,
        *,
        blocking: bool,
    ) -> None:
        """Set the parts; `blocking` computes scores before other work, not concurrently."""
        self.pool, self.bounds, self.generation = pool, bounds, generation
        self.filter, self.blocking = group_filter, blocking
        self.without_signal = 0
        self.states = {0: PoolState(next_prompt=0)}
        """State after the last step and the one before it, which is restored if the last is
        abandoned."""

    def next(self, step: int, check_interrupt: Callable[[], None]) -> Gathered:
        """Generate until there are enough groups to train on."""
        pool, bounds, generation = self.pool, self.bounds, self.generation
        generation.begin(step, check_interrupt)
        pool.start(step, bounds.to_start(step, len(pool.groups)))
        self._generate(step, bounds.per_step, check_interrupt)
        judged = None if self.filter is None else self._judged(step, self.filter, check_interrupt)
        if judged is None:
            trained = self._take(step, bounds.per_step)
        else:
            trained = [judged.groups[index] for index in judged.chosen]
        if generation.runs_ahead:
            pool.start(step, bounds.to_start_ahead(step, len(pool.groups)))
        # Raises if all conversations have failed: `end` measures the ages of the others.
        checked = {} if pool.turns is None else pool.turns.check(trained)
        measured = generation.end(step, trained, check_interrupt)
        pool.send_routes()
        metrics = measured.metrics | checked
        prompts, rollouts = pool.prompts_of(trained), pool.rollouts(step, trained)
        rating: Rating
        if judged is None:
            rewards, known = pool.answering.rewards, generation.rewarded(trained)
            rating = rewards.compute(prompts, rollouts, blocking=self.blocking, known=known)
        else:
            metrics = metrics | judged.metrics()
            rewarded = judged.rewarded()
            rating = nullcontext(lambda: rewarded)
        return Gathered(
            prompts=prompts,
            rollouts=rollouts,
            rating=rating,
            metrics=metrics,
            probed=measured.probed,
            gap=measured.gap,
            conversations=pool.conversations(trained),
        )

    def trained(self, step: int) -> Metrics:
        """Publish the weights to engines that run ahead, and keep the state after the step."""
        metrics, pool = self.generation.publish(step), self.pool
        after = PoolState(
            next_prompt=pool.next_prompt,
            groups=tuple(pool.groups.values()),
            without_signal=self.without_signal,
        )
        self.states = {step - 1: self.states[step - 1], step: after}
        pool.retain_routes([group for each in self.states.values() for group in each.groups])
        return metrics

    def state(self, step: int) -> dict[str, Any]:
        """Return the open groups after a step: the last one or the one before."""
        return self.states[step].to_json()

    def load_state(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue after a step."""
        fresh = PoolState(next_prompt=step * self.bounds.per_step)
        self.states = {step: PoolState.of_json(state) if state else fresh}
        self.pool.load(self.states[step])
        self.generation.load(step)
        self.without_signal = self.states[step].without_signal

    def _ready(self, step: int, needed: int, complete_G: Sequence[bool]) -> list[int] | None:
        starts = [group.start_step for group in self.pool.groups.values()]
        return self.bounds.ready(step, starts, complete_G, needed)

    def _generate(self, step: int, needed: int, check_interrupt: Callable[[], None]) -> None:
        def is_enough(complete_G: Sequence[bool]) -> bool:
            return self._ready(step, needed, complete_G) is not None

        self.generation.generate(step, is_enough, check_interrupt)

    def _take(self, step: int, needed: int) -> list[OpenGroup]:
        indices = self._ready(step, needed, self.pool.complete_groups())
        assert indices is not None, "generation ends with enough complete groups"
        return self.pool.take(indices)

    def _judge(
        self,
        step: int,
        groups: Sequence[OpenGroup],
        group_filter: GroupFilter,
        judged: ScoredGroups,
    ) -> None:
        """Score complete groups; without a response that has not failed there is no signal."""
        if all(each.has_failed for group in groups for each in group.sequences):
            judged.add_failed(groups)
            return
        pool, known = self.pool, self.generation.rewarded(groups)
        prompts, rollouts = pool.prompts_of(groups), pool.rollouts(step, groups)
        group_B = rollouts.conversations().last(rollouts.group_B)
        rating = pool.answering.rewards.compute(prompts, rollouts, blocking=True, known=known)
        with rating as rewarded:
            signal_G = group_filter.signals(len(groups), rewarded(), group_B)
            judged.add(groups, rewarded(), group_B, signal_G)

    def _judged(
        self, step: int, group_filter: GroupFilter, check_interrupt: Callable[[], None]
    ) -> ScoredGroups:
        """Score complete groups and replace those without a signal until the step is full.

        Without staleness all groups of a rollout are scored together; those after the one that
        fills the step are discarded, and their prompts belong to the next step.
        """
        judged, pool, bounds = group_filter.begin(), self.pool, self.bounds
        while True:
            self._judge(step, self._take(step, judged.needed), group_filter, judged)
            check_interrupt()
            if judged.needed <= 0:
                break
            found, likely = judged.found, judged.likely
            pool.start(step, bounds.to_start(step, len(pool.groups), found=found, likely=likely))
            if self._ready(step, judged.needed, pool.complete_groups()) is None:
                self._generate(step, judged.needed, check_interrupt)
        pool.next_prompt -= len(judged.groups) - judged.used
        used_G = judged.signal_G[: judged.used]
        self.without_signal = group_filter.without_signal(self.without_signal, used_G)
        group_filter.warn_missing(step, judged)
        return judged
