"""Scores of the reward functions for groups, computed while engines generate others."""

from collections.abc import Sequence
from threading import Condition, Thread

from mindrl.trainer.reward_manager import Rewarded
from mindrl.trainer.source.group import OpenGroup
from mindrl.trainer.source.pool import GroupPool


class GroupRatings:
    """Scores each complete group once, on a thread that ends when there are no more."""

    def __init__(self, pool: GroupPool) -> None:
        """Set the pool; no thread starts yet."""
        self.pool = pool
        self._changed = Condition()
        self._known: set[OpenGroup] = set()
        self._waiting: list[OpenGroup] = []
        self._rated: dict[OpenGroup, Rewarded] = {}
        self._error: BaseException | None = None
        self._works = False

    def begin(self, groups: Sequence[OpenGroup] | None = None) -> None:
        """Begin to score new groups, by default all complete ones of the pool."""
        if groups is None:
            complete = zip(self.pool.groups.values(), self.pool.complete_groups(), strict=True)
            groups = [group for group, whole in complete if whole]
        new = [group for group in groups if group not in self._known]
        self._known.update(new)
        with self._changed:
            self._waiting += new
            if self._waiting and not self._works:
                self._works = True
                Thread(target=self._run, name="rewards_0", daemon=True).start()

    def take(self, groups: Sequence[OpenGroup]) -> Rewarded:
        """Wait for the scores of groups passed to `begin`; forget the groups.

        Raises as `RewardManager.by_rules`.
        """
        with self.pool.answering.rewards.timer("reward"), self._changed:
            self._changed.wait_for(lambda: self._error or self._rated.keys() >= {*groups})
            if self._error is not None:
                raise self._error
            self._known.difference_update(groups)
            return Rewarded.joined([self._rated.pop(group) for group in groups])

    def forget(self) -> None:
        """Forget all groups: the pool has loaded others."""
        with self._changed:
            self._known.clear()
            self._waiting.clear()
            self._rated.clear()

    def _run(self) -> None:
        """Score all waiting groups in one call, until none waits, or a call fails."""
        while groups := self._next():
            try:
                rated = self._score(groups)
            except BaseException as error:  # noqa: BLE001 - the driver raises it
                with self._changed:
                    self._error, self._works = error, False
                    self._changed.notify_all()
                return
            with self._changed:
                self._rated.update(zip(groups, rated, strict=True))
                self._changed.notify_all()

    def _next(self) -> list[OpenGroup]:
        with self._changed:
            groups, self._waiting = self._waiting, []
            self._works = bool(groups)
            return groups

    def _score(self, groups: Sequence[OpenGroup]) -> list[Rewarded]:
        prompts, rollouts = self.pool.prompts_of(groups), self.pool.rollouts(0, groups)
        lengths = [self.pool.samples] * len(groups)
        return self.pool.answering.rewards.by_rules_in_parts(lengths, prompts, rollouts)
