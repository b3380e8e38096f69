"""Steps of groups with a signal: DAPO's dynamic sampling (arXiv 2503.14476, section 3.2).

Shapes: B responses of a rollout, G groups in the order of the data.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import takewhile
from math import ceil, gcd
from typing import Any

import torch

from mindrl.algorithms.advantages import groups_of
from mindrl.config.rl import ACCURACY
from mindrl.config.run import RunConfig
from mindrl.errors import NoSignalError
from mindrl.observability.metrics import Metrics
from mindrl.trainer.gathering import Answering, Gathered
from mindrl.trainer.reward_manager import RatedBatch


@dataclass(frozen=True, kw_only=True)
class DrawnSoFar:
    """Position of the steps in the data."""

    place: int
    """Index of the next prompt in its order."""
    without_signal: int = 0
    """Consecutive prompts before it whose groups had no signal."""


class SignalGroups:
    """Draws prompts until a step has enough groups whose responses differ in their rewards.

    A step ends with the group that fills it, and the next one starts after that: each prompt of an
    epoch is trained on once, or found without a signal once. Further responses are discarded, and
    their prompts are answered again with the weights of their own step.
    """

    def __init__(
        self, config: RunConfig, answering: Answering, tell: Callable[[str], None]
    ) -> None:
        """Set the parts; `tell` is called with notes for the user."""
        rl, self.answering, self.tell = config.rl_config, answering, tell
        self.per_step, self.samples = answering.per_step, rl.n_samples_per_prompt
        self.metric, self.judge = rl.filter_groups_metric, next(iter(rl.verifier_function), "")
        epoch = max(1, len(answering.prompts) // self.per_step)
        self.most = self.per_step * (rl.filter_groups_max_batches or epoch)
        """Maximum number of prompts that a step may draw."""
        replicas = config.layout("reward").dp if config.reward_config else 1
        self.multiple = replicas // gcd(replicas, self.samples)
        """Prompts per rollout are a multiple of this: a reward model's replicas need equal
        shares."""
        self.behind = {0: DrawnSoFar(place=0)}
        """State after the last step and the one before it, which is restored if the last is
        abandoned."""
        self.has_told = False

    def gather(self, step: int, check_interrupt: Callable[[], None]) -> Gathered:
        """Roll out until the step is full or its limit is reached; then other groups fill it."""
        begin, parts, signal_G = self.behind[step - 1], list[RatedBatch](), list[bool]()
        while sum(signal_G) < self.per_step and len(signal_G) < self.most:
            count = self._likely(signal_G)
            parts.append(self._rolled_out(step, begin.place + len(signal_G), count, parts))
            signal_G += self._signals(parts[-1])
            check_interrupt()
        groups, used = self._chosen(signal_G)
        self.behind = {step - 1: begin, step: self._after(begin, signal_G[:used])}
        if missing := self.per_step - sum(signal_G[group] for group in groups):
            self._tell(step, missing)
        batch = RatedBatch.joined(parts).of_groups(groups)
        return Gathered(
            prompts=batch.prompts,
            rollouts=batch.rollouts,
            rating=nullcontext(lambda: batch.rewarded),
            metrics={
                "groups/rollouts": float(len(parts)),
                "groups/drawn": float(len(signal_G)),
                "groups/without_signal": 1 - sum(signal_G) / len(signal_G),
                "groups/answered_again": float(len(signal_G) - used),
            },
        )

    def learned(self, step: int) -> Metrics:  # noqa: ARG002
        """Do nothing: the next generation fetches the weights."""
        return {}

    def state(self, step: int) -> dict[str, Any]:
        """Return the position after a step: the last one or the one before."""
        return asdict(self.behind[step])

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue after a step."""
        self.behind = {step: DrawnSoFar(**{"place": step * self.per_step, **state})}

    def _likely(self, signal_G: Sequence[bool]) -> int:
        """Return how many more prompts will probably fill the step, at most those of a step."""
        share = max(1, sum(signal_G)) / max(1, len(signal_G))
        likely = ceil((self.per_step - sum(signal_G)) / share / self.multiple) * self.multiple
        return min(likely, self.per_step, self.most - len(signal_G))

    def _rolled_out(
        self, step: int, place: int, count: int, before: Sequence[RatedBatch]
    ) -> RatedBatch:
        answering = self.answering
        prompts = answering.draw(place, count)
        answered = [prompt for part in before for prompt in part.prompts]
        rollouts = answering.roll_out(prompts, step, answered)
        with answering.rewards.compute(prompts, rollouts, blocking=True) as rewarded:
            return RatedBatch(prompts=prompts, rollouts=rollouts, rewarded=rewarded())

    def _signals(self, batch: RatedBatch) -> list[bool]:
        """Return for each group whether its responses differ."""
        scores = batch.rewarded.scores
        values = scores.rewards
        if self.metric == ACCURACY and ACCURACY not in scores.components:
            values = tuple(scores.shares(self.judge))
        elif self.metric is not None:
            # A function that applies to no response of a group gives it no signal.
            values = tuple(each or 0.0 for each in scores.components[self.metric])
        # As for the advantages: exactly 0 if all are equal.
        centred_B = groups_of(torch.tensor(values), batch.rollouts.group_B).centred_B
        signal_G: list[bool] = (centred_B != 0).view(-1, self.samples).any(dim=1).tolist()
        return signal_G

    def _chosen(self, signal_G: Sequence[bool]) -> tuple[list[int], int]:
        """Return the groups to train on, in order, and the number of prompts used by the step."""
        found = [group for group, has in enumerate(signal_G) if has][: self.per_step]
        if len(found) == self.per_step:
            return found, found[-1] + 1
        others = [group for group, has in enumerate(signal_G) if not has]
        return sorted(found + others[: self.per_step - len(found)]), len(signal_G)

    def _after(self, begin: DrawnSoFar, signal_G: Sequence[bool]) -> DrawnSoFar:
        """Return the position after the step.

        Raises:
            NoSignalError: No group has had a signal for as many prompts as the data has.
        """
        without = len([*takewhile(lambda has: not has, reversed(signal_G))])
        without += begin.without_signal * (without == len(signal_G))
        if without >= len(self.answering.prompts):
            what = "rewards" if self.metric is None else f"scores of {self.metric}"
            raise NoSignalError(
                f"rl_config.filter_groups_enable=true: the {what} of the responses to each of the "
                f"last {without} prompts are equal, and the data has {len(self.answering.prompts)}:"
                " there is nothing to learn from; other data or rewards, more "
                "rl_config.n_samples_per_prompt or a higher temperature may help"
            )
        return DrawnSoFar(place=begin.place + len(signal_G), without_signal=without)

    def _tell(self, step: int, missing: int) -> None:
        if not self.has_told:
            self.tell(
                f"step {step}: {missing} of {self.per_step} groups have no signal after the "
                f"{self.most} prompts that a step may draw (rl_config.filter_groups_max_batches): "
                "their advantages are 0; groups/without_signal tells of later steps"
            )
        self.has_told = True
