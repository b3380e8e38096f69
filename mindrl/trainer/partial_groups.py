"""Steps that end before all responses are whole: what is left goes on in the next one.

The colocated form of partial rollout, as in Kimi k1.5 (arXiv 2501.12599, section 2.6.2).

Shapes: G groups, the oldest first.
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
    """Begins more groups than a step needs, and trains on the first that are whole.

    The others keep their tokens and go on with the weights of the next step. All is decided by
    counts of engine steps: equal runs are equal.
    """

    def __init__(self, config: RunConfig, answering: Answering) -> None:
        """Take the parts."""
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
        """By the last step and the one before it, which is on record where the last is given up."""

    def gather(self, step: int, heed: Callable[[], None]) -> Gathered:
        """Begin groups, and draw until enough of all that are under way are whole."""
        begin = self.behind[step - 1]
        count = self.bounds.to_begin(step, len(begin.groups))
        begun = self.open.begun(step, begin.place, count)
        groups, rounds = self._drawn(step, [*begin.groups, *begun])
        taken = self._taken(step, groups, [group.is_whole(self.open.longest) for group in groups])
        assert taken is not None, "it was drawn until there are enough"
        left = tuple(group for place, group in enumerate(groups) if place not in {*taken})
        pool = GroupPool(place=begin.place + len(begun), groups=left)
        self.behind = {step - 1: begin, step: pool}
        heed()
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
            # Else the step would have no token to measure the log-prob gap at.
            probed=self.open.drawn_in(step, left, PROBE_RESPONSES) if is_stale else None,
        )

    def learned(self, step: int) -> Metrics:  # noqa: ARG002
        """Do nothing: whoever answers next asks for the weights."""
        return {}

    def state(self, step: int) -> dict[str, Any]:
        """Return what is under way behind a step, the last one or the one before."""
        return self.behind[step].state()

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Go on behind a step."""
        fresh = GroupPool(place=step * self.bounds.per_step)
        self.behind = {step: GroupPool.of_state(state) if state else fresh}

    def _taken(
        self, step: int, groups: Sequence[OpenGroup], whole_G: Sequence[bool]
    ) -> list[int] | None:
        """Return which groups the step trains on, if enough are whole."""
        return self.bounds.taken(step, [group.born for group in groups], whole_G)

    def _drawn(self, step: int, groups: Sequence[OpenGroup]) -> tuple[list[OpenGroup], int]:
        """Let the engines go on with all groups until enough are whole; counts the rounds."""
        answering, rounds = self.answering, 0
        asked = [
            (place, number)
            for place, group in enumerate(groups)
            for number in group.open_places(self.open.longest)
        ]
        if not asked:  # the last steps may find all that they need
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
    """Add to each response that was asked for what was drawn of it."""
    found, finished = [*groups], responses.finished_B.tolist()
    for (place, number), more, ended in zip(asked, responses.each(), finished, strict=True):
        found[place] = found[place].with_more(number, more, step=step, finished=ended)
    return found
