"""Steps that end before all responses are complete: the rest continues in the next step.

The colocated form of partial rollout, as in Kimi k1.5 (arXiv 2501.12599, section 2.6.2). Shapes: G
groups, the oldest first.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil
from typing import Any

from mindrl.batch.rollouts import Responses
from mindrl.config.run import RunConfig
from mindrl.observability.metrics import Metrics
from mindrl.trainer.gathering import Answering, Gathered
from mindrl.trainer.group_pool import GroupPool, OpenGroup
from mindrl.trainer.open_groups import OpenGroups, staleness
from mindrl.trainer.pool_bounds import PoolBounds
from mindrl.trainer.weight_probe import PROBE_RESPONSES


class PartialGroups:
    """Starts more groups than a step needs, and trains on the first complete ones.

    The others keep their tokens and continue with the weights of the next step. All decisions
    depend on counts of engine steps: equal runs give equal results.
    """

    def __init__(self, config: RunConfig, answering: Answering) -> None:
        """Set the parts."""
        training, rl = config.megatron_training, config.rl_config
        self.open, self.answering = OpenGroups.of(config, answering), answering
        self.blocking, self.round_steps = rl.blocking, rl.rollout_round_steps
        self.bounds = PoolBounds(
            per_step=answering.per_step,
            in_flight=ceil(rl.groups_in_flight * answering.per_step),
            max_staleness=rl.max_staleness,
            last_step=training.train_iters,
        )
        self.behind = {0: GroupPool(place=0)}
        """State after the last step and the one before it, which is restored if the last is
        abandoned."""

    def gather(self, step: int, check_interrupt: Callable[[], None]) -> Gathered:
        """Start groups, and generate until enough of all open groups are complete."""
        begin = self.behind[step - 1]
        count = self.bounds.to_begin(step, len(begin.groups))
        begun = self.open.begun(step, begin.place, count)
        groups, rounds = self._drawn(step, [*begin.groups, *begun])
        taken = self._taken(step, groups, [group.is_whole(self.open.longest) for group in groups])
        assert taken is not None, "it was drawn until there are enough"
        left = tuple(group for place, group in enumerate(groups) if place not in {*taken})
        pool = GroupPool(place=begin.place + len(begun), groups=left)
        self.behind = {step - 1: begin, step: pool}
        check_interrupt()
        chosen = [groups[place] for place in taken]
        prompts = [self.answering.prompts[group.index] for group in chosen]
        rollouts = self.open.rollouts(step, chosen)
        rating = self.answering.rewards.compute(prompts, rollouts, blocking=self.blocking)
        stale_BT = rollouts.ages_BT
        is_stale = stale_BT is not None and bool((stale_BT[rollouts.response_mask_BT] > 0).all())
        return Gathered(
            prompts=prompts,
            rollouts=rollouts,
            rating=rating,
            metrics={"staleness/rounds": float(rounds), **staleness(step, chosen, left)},
            # Otherwise the step would have no token for measuring the log-prob gap.
            probed=self.open.drawn_in(step, left, PROBE_RESPONSES) if is_stale else None,
        )

    def learned(self, step: int) -> Metrics:  # noqa: ARG002
        """Do nothing: the next generation fetches the weights."""
        return {}

    def state(self, step: int) -> dict[str, Any]:
        """Return the open groups after a step: the last one or the one before."""
        return self.behind[step].state()

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue after a step."""
        fresh = GroupPool(place=step * self.bounds.per_step)
        self.behind = {step: GroupPool.of_state(state) if state else fresh}

    def _taken(
        self, step: int, groups: Sequence[OpenGroup], whole_G: Sequence[bool]
    ) -> list[int] | None:
        """Return the groups that the step trains on, if enough are complete."""
        return self.bounds.taken(step, [group.born for group in groups], whole_G)

    def _drawn(self, step: int, groups: Sequence[OpenGroup]) -> tuple[list[OpenGroup], int]:
        """Generate for all groups until enough are complete; also return the number of rounds."""
        answering, rounds = self.answering, 0
        asked = [
            (place, number)
            for place, group in enumerate(groups)
            for number in group.open_places(self.open.longest)
        ]
        if not asked:  # the last steps may already have all that they need
            return [*groups], 0
        requests = [self.open.request(groups[place], number) for place, number in asked]

        def is_enough(whole: Collection[int]) -> bool:
            nonlocal rounds
            rounds += 1
            left = {place for row, (place, _) in enumerate(asked) if row not in whole}
            whole_G = [place not in left for place in range(len(groups))]
            return self._taken(step, groups, whole_G) is not None

        with answering.rewards.timer("rollout"):
            responses = answering.workers.generate_until(
                requests, answering.sampling, is_enough, round_steps=self.round_steps
            )
        return _with_more(groups, asked, responses, step), rounds


def _with_more(
    groups: Sequence[OpenGroup],
    asked: Sequence[tuple[int, int]],
    responses: Responses,
    step: int,
) -> list[OpenGroup]:
    """Append the generated tokens to each requested response."""
    found, finished = [*groups], responses.finished_B.tolist()
    for (place, number), more, ended in zip(asked, responses.each(), finished, strict=True):
        found[place] = found[place].with_more(number, more, step=step, finished=ended)
    return found
