"""Steps whose responses are generated during training, with rollout on its own devices.

One step off: the next step's responses are generated with the weights from before the update, and
all are complete before new weights are published. Asynchronous: generation is continuous, and open
responses continue with new weights, within an age limit (AReaL, arXiv 2505.24298, without its
proximal policy).
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
    """Keeps the replicas generating, and trains on the oldest complete groups.

    A step waits for groups that would become too old; nothing is dropped, and no group starts that
    the last step could not train on. With one step off, the result does not depend on the replicas'
    speeds.
    """

    def __init__(self, config: RunConfig, answering: Answering) -> None:
        """Set the parts; the rollout must have its own devices."""
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
        """Index of the next prompt in the order of the data."""
        self.behind = {0: GroupPool(place=0)}
        """State after the last step and the one before it, which is restored if the last is
        abandoned."""

    def gather(self, step: int, check_interrupt: Callable[[], None]) -> Gathered:
        """Wait for enough groups, and let the replicas continue during training."""
        pool, bounds, answering = self.pool, self.bounds, self.answering
        pool.open(step - 1, check_interrupt)
        began = self._begin(step, bounds.to_begin(step, len(pool.dealt.groups)), [])
        with answering.rewards.timer("rollout"):
            pool.draw(lambda: self._taken(step) is not None, check_interrupt, step - 1)
        taken = self._taken(step)
        assert taken is not None, "it was drawn until there are enough"
        chosen = pool.dealt.pop(taken)
        self._begin(step, bounds.to_begin_behind(step, len(pool.dealt.groups)), began)
        pool.deal()
        check_interrupt()
        prompts = [answering.prompts[group.index] for group in chosen]
        rollouts = self.open.rollouts(step, chosen)
        rating = answering.rewards.compute(prompts, rollouts, blocking=self.blocking)
        return Gathered(
            prompts=prompts,
            rollouts=rollouts,
            rating=rating,
            metrics=staleness(step, chosen, pool.dealt.under_way),
            probed=pool.take_probed(check_interrupt),
        )

    def learned(self, step: int) -> Metrics:
        """Stop the replicas (one step off: when all is complete), and publish the new weights."""
        pool = self.pool
        pool.close(lambda: self.is_asynchronous or all(pool.dealt.whole()))
        self.behind = {
            step - 1: self.behind[step - 1],
            step: GroupPool(place=self.place, groups=pool.dealt.under_way),
        }
        pool.publish(step)
        return pool.flush_metrics()

    def state(self, step: int) -> dict[str, Any]:
        """Return the open groups after a step: the last one or the one before."""
        return self.behind[step].state()

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue after a step."""
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
        """Start groups after those that the step has started; return the indices of all."""
        groups = self.open.begun(step, self.place, count, before)
        self.place += count
        self.pool.dealt.add(groups)
        return [*before, *(group.index for group in groups)]

    def _taken(self, step: int) -> list[int] | None:
        dealt = self.pool.dealt
        born_G = [group.born for group in dealt.under_way]
        return self.bounds.taken(step, born_G, dealt.whole())
