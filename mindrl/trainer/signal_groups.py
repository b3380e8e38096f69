"""Steps of groups with a signal: the dynamic sampling of DAPO (arXiv 2503.14476, section 3.2).

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
    """How far the steps have come in the data."""

    place: int
    """Of the next prompt in its order."""
    without_signal: int = 0
    """Prompts in a row before it whose groups had none."""


class SignalGroups:
    """Goes on in the data until a step has groups enough whose responses differ in their rewards.

    A step ends with the group that fills it, and the next one begins behind that: each prompt of an
    epoch is trained on once, or found without a signal once. What was answered beyond it is thrown
    away, and its prompts are answered again, by the weights of their own step.
    """

    def __init__(
        self, config: RunConfig, answering: Answering, tell: Callable[[str], None]
    ) -> None:
        """Take the parts; `tell` takes what a person should know."""
        rl, self.answering, self.tell = config.rl_config, answering, tell
        self.per_step, self.samples = answering.per_step, rl.n_samples_per_prompt
        self.metric, self.judge = rl.filter_groups_metric, next(iter(rl.verifier_function), "")
        epoch = max(1, len(answering.prompts) // self.per_step)
        self.most = self.per_step * (rl.filter_groups_max_batches or epoch)
        """Prompts that a step may draw."""
        replicas = config.layout("reward").dp if config.reward_config else 1
        self.multiple = replicas // gcd(replicas, self.samples)
        """Of prompts: the replicas of a reward model have equally many sequences."""
        self.behind = {0: DrawnSoFar(place=0)}
        """By the last step and the one before it, which is on record where the last is given up."""
        self.has_told = False

    def gather(self, step: int, heed: Callable[[], None]) -> Gathered:
        """Roll out until the step is full, or may draw no more; then others fill it."""
        begin, parts, signal_G = self.behind[step - 1], list[RatedBatch](), list[bool]()
        while sum(signal_G) < self.per_step and len(signal_G) < self.most:
            count = self._likely(signal_G)
            parts.append(self._rolled_out(step, begin.place + len(signal_G), count, parts))
            signal_G += self._signals(parts[-1])
            heed()
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
        """Do nothing: whoever answers next asks for the weights."""
        return {}

    def state(self, step: int) -> dict[str, Any]:
        """Return how far it has come behind a step, the last one or the one before."""
        return asdict(self.behind[step])

    def resume(self, step: int, state: Mapping[str, Any]) -> None:
        """Go on behind a step."""
        self.behind = {step: DrawnSoFar(**{"place": step * self.per_step, **state})}

    def _likely(self, signal_G: Sequence[bool]) -> int:
        """Return how many more prompts are likely to fill the step, at most those of a step."""
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
        """Say of each group whether its responses differ."""
        scores = batch.rewarded.scores
        values = scores.rewards
        if self.metric == ACCURACY and ACCURACY not in scores.components:
            values = tuple(scores.shares(self.judge))
        elif self.metric is not None:
            # A function that applies to none of a group tells none of it apart.
            values = tuple(each or 0.0 for each in scores.components[self.metric])
        # As the advantages are made: exactly 0 where all are equal.
        centred_B = groups_of(torch.tensor(values), batch.rollouts.group_B).centred_B
        signal_G: list[bool] = (centred_B != 0).view(-1, self.samples).any(dim=1).tolist()
        return signal_G

    def _chosen(self, signal_G: Sequence[bool]) -> tuple[list[int], int]:
        """Return the groups to train on, in order, and how many prompts are behind the step."""
        found = [group for group, has in enumerate(signal_G) if has][: self.per_step]
        if len(found) == self.per_step:
            return found, found[-1] + 1
        others = [group for group, has in enumerate(signal_G) if not has]
        return sorted(found + others[: self.per_step - len(found)]), len(signal_G)

    def _after(self, begin: DrawnSoFar, signal_G: Sequence[bool]) -> DrawnSoFar:
        """Return how far the step has come.

        Raises:
            NoSignalError: No group has had a signal since as many prompts as the data has.
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
