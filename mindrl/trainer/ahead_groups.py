"""Steps whose responses are drawn while others learn, where the rollout has devices of its own.

One step off: the next step's are drawn with the weights from before the update, and all are whole
before there are new ones. Asynchronous: they are drawn on and on, and those under way go on with
new weights, none older than a bound (AReaL, arXiv 2505.24298, without its proximal policy).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from mindrl.config.run import RunConfig
from mindrl.observability.metrics import Metrics
from mindrl.trainer.dealt_groups import DealtGroups
from mindrl.trainer.engines import SeparateEngines
from mindrl.trainer.gathering import Answering, Gathered
from mindrl.trainer.group_pool import GroupPool, OpenGroup
from mindrl.trainer.open_groups import OpenGroups, staleness
from mindrl.trainer.pool_bounds import PoolBounds
from mindrl.trainer.replica_pool import ReplicaPool
from mindrl.trainer.weight_probe import WeightProbe


class AheadGroups:
    """Keeps the replicas drawing, and trains on the oldest groups that are whole.

    A step waits for what would get too old; nothing is dropped, and nothing begins that the last
    step could not train on. One step off, nothing depends on who draws how fast.
    """

    def __init__(self, config: RunConfig, answering: Answering) -> None:
        """Take the parts; validated: the rollout has devices of its own."""
        rl, per_step = config.rl_config, answering.per_step
        self.answering, self.open = answering, OpenGroups.of(config, answering)
        self.blocking, self.is_asynchronous = rl.blocking, rl.step_order == "asynchronous"
        age = rl.max_staleness if self.is_asynchronous else 1
        self.bounds = PoolBounds(
            per_step=per_step,
            in_flight=(1 + age) * per_step if self.is_asynchronous else per_step,
            max_staleness=age,
            last_step=config.megatron_training.train_iters,
        )
        self.pool = ReplicaPool(
            cast("SeparateEngines", answering.workers.engines),
            self._dealt(()),
            request=self.open.request,
            probe=partial(WeightProbe.of, answering, config.megatron_training.seed),
            sampling=answering.sampling,
            round_steps=rl.rollout_round_steps,
        )
        self.place = 0
        """Of the next prompt in the order of the data."""
        self.behind = {0: GroupPool(place=0)}
        """By the last step and the one before it, which is on record where the last is given up."""

    def gather(self, step: int, heed: Callable[[], None]) -> Gathered:
        """Wait for groups enough, and have the replicas draw on while the step learns."""
        pool, bounds, answering = self.pool, self.bounds, self.answering
        pool.open(step - 1, heed)
        began = self._begin(step, bounds.to_begin(step, len(pool.dealt.groups)), [])
        with answering.rewards.timer("rollout"):
            pool.draw(lambda: self._taken(step) is not None, heed, step - 1)
        taken = self._taken(step)
        assert taken is not None, "it was drawn until there are enough"
        chosen = pool.dealt.pop(taken)
        self._begin(step, bounds.to_begin_behind(step, len(pool.dealt.groups)), began)
        pool.deal()
        heed()
        prompts = [answering.prompts[group.index] for group in chosen]
        rollouts = self.open.rollouts(step, chosen)
        rating = answering.rewards.compute(prompts, rollouts, blocking=self.blocking)
        return Gathered(
            prompts=prompts,
            rollouts=rollouts,
            rating=rating,
            metrics=staleness(step, chosen, pool.dealt.under_way),
            probed=pool.take_probed(heed),
        )

    def learned(self, step: int) -> Metrics:
        """Stop the replicas, one step off when all is whole, and give them the new weights."""
        pool = self.pool
        pool.close(lambda: self.is_asynchronous or all(pool.dealt.whole()))
        self.behind = {
            step - 1: self.behind[step - 1],
            step: GroupPool(place=self.place, groups=pool.dealt.under_way),
        }
        pool.publish(step)
        return pool.flush_metrics()

    def state(self, step: int) -> dict[str, Any]:
        """Return what is under way behind a step, the last one or the one before."""
        return self.behind[step].state()

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Go on behind a step."""
        fresh = GroupPool(place=step * self.bounds.per_step)
        behind = GroupPool.of_state(state) if state else fresh
        self.behind, self.place = {step: behind}, behind.place
        self.pool.dealt = self._dealt(behind.groups)

    def _dealt(self, groups: tuple[OpenGroup, ...]) -> DealtGroups:
        prompts = self.answering.prompts
        return DealtGroups(
            groups, self.open.longest, lambda group: len(prompts[group.index].token_ids)
        )

    def _begin(self, step: int, count: int, before: list[int]) -> list[int]:
        """Begin groups behind those that the step has begun; returns the indices of all."""
        groups = self.open.begun(step, self.place, count, before)
        self.place += count
        self.pool.dealt.add(groups)
        return [*before, *(group.index for group in groups)]

    def _taken(self, step: int) -> list[int] | None:
        dealt = self.pool.dealt
        born_G = [group.born for group in dealt.under_way]
        return self.bounds.taken(step, born_G, dealt.whole())
