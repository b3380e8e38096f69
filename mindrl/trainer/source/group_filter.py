"""Groups with a signal: DAPO's dynamic sampling (arXiv 2503.14476, section 3.2).

Shapes: B responses, G groups in the order in which a step scored them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import ceil

import torch
from torch import Tensor

from mindrl.algorithms.advantages import groups_of
from mindrl.config.rl import ACCURACY
from mindrl.config.run import RunConfig
from mindrl.errors import NoSignalError
from mindrl.observability.metrics import Metrics
from mindrl.trainer.reward_manager import Rewarded
from mindrl.trainer.source.group import OpenGroup
from mindrl.trainer.source.interface import Answering


@dataclass(kw_only=True)
class ScoredGroups:
    """Scored groups of a step: those with a signal, and the others until the step is full."""

    per_step: int
    most: int
    """Number of scored groups after which groups without a signal fill the step."""
    groups: list[OpenGroup] = field(default_factory=list)
    scored: list[Rewarded] = field(default_factory=list)
    group_B: list[int] = field(default_factory=list)
    """Index of the group of each scored response."""
    signal_G: list[bool] = field(default_factory=list)

    def add(
        self,
        groups: Sequence[OpenGroup],
        rewarded: Rewarded,
        group_B: Tensor,
        signal_G: Sequence[bool],
    ) -> None:
        """Add groups that were scored together; `group_B` is the index of each response's group."""
        self.group_B += (group_B + len(self.groups)).tolist()
        self.groups += groups
        self.scored.append(rewarded)
        self.signal_G += signal_G

    def add_failed(self, groups: Sequence[OpenGroup]) -> None:
        """Add groups of failed conversations, which have no scores."""
        self.groups += groups
        self.signal_G += [False] * len(groups)

    @property
    def found(self) -> int:
        """Number of groups with a signal."""
        return sum(self.signal_G)

    @property
    def needed(self) -> int:
        """Minimum number of groups to score next; not positive if the step is full."""
        return self.per_step - self.found if len(self.groups) < self.most else 0

    @property
    def likely(self) -> int:
        """Number of further groups that will probably fill the step, at most those of a step."""
        share = max(1, self.found) / max(1, len(self.groups))
        likely = ceil((self.per_step - self.found) / share)
        return min(likely, self.per_step, self.most - len(self.groups))

    @property
    def chosen(self) -> list[int]:
        """Indices of the groups to train on: the oldest without a signal fill the step."""
        found = [group for group, has in enumerate(self.signal_G) if has][: self.per_step]
        others = [group for group, has in enumerate(self.signal_G) if not has]
        return sorted(found + others[: self.per_step - len(found)])

    @property
    def used(self) -> int:
        """Number of groups up to the one that filled the step."""
        return len(self.groups) if self.found < self.per_step else self.chosen[-1] + 1

    def rewarded(self) -> Rewarded:
        """Return texts and scores of the chosen groups; failures of the others still count."""
        chosen = {*self.chosen}
        rows = [row for row, group in enumerate(self.group_B) if group in chosen]
        return Rewarded.joined(self.scored).rows(rows)

    def metrics(self) -> Metrics:
        """Return metrics about the scored groups."""
        return {
            "groups/rollouts": float(len(self.scored)),
            "groups/drawn": float(len(self.groups)),
            "groups/without_signal": 1 - self.found / len(self.groups),
            "groups/answered_again": float(len(self.groups) - self.used),
        }


class GroupFilter:
    """Judges whether the responses of a group differ, and ends a run without any signal."""

    def __init__(
        self, config: RunConfig, answering: Answering, warn: Callable[[str], None]
    ) -> None:
        """Set the quantity and the limits; `warn` is called with notes for the user."""
        rl, self.warn = config.rl_config, warn
        self.per_step = answering.per_step
        self.metric, self.judge = rl.filter_groups_metric, next(iter(rl.verifier_function), "")
        self.prompts = len(answering.prompts)
        epoch = max(1, self.prompts // self.per_step)
        self.most = self.per_step * (rl.filter_groups_max_batches or epoch)
        self.has_warned = False

    def begin(self) -> ScoredGroups:
        """Return the empty record of a step."""
        return ScoredGroups(per_step=self.per_step, most=self.most)

    def signals(self, groups: int, rewarded: Rewarded, group_B: Tensor) -> list[bool]:
        """Return for each of a number of groups whether its responses differ.

        `group_B` is the index of the group of each response. An empty group has no signal.
        """
        scores = rewarded.scores
        values = scores.rewards
        if self.metric == ACCURACY and ACCURACY not in scores.components:
            values = tuple(scores.shares(self.judge))
        elif self.metric is not None:
            # A function that applies to no response of a group gives it no signal. The batch lacks
            # its scores if it applies to none of these groups.
            given = scores.components.get(self.metric, (None,) * len(values))
            values = tuple(each or 0.0 for each in given)
        # As for the advantages, exactly 0 if all values are equal.
        centred_B = groups_of(torch.tensor(values), group_B).centred_B
        found = {*group_B[centred_B != 0].tolist()}
        return [group in found for group in range(groups)]

    def without_signal(self, before: int, signal_G: Sequence[bool]) -> int:
        """Return how many consecutive prompts up to the end of a step have had no signal.

        Raises:
            NoSignalError: The number has reached that of the data's prompts.
        """
        without = len([*takewhile(lambda has: not has, reversed(signal_G))])
        without += before * (without == len(signal_G))
        if without >= self.prompts:
            what = "rewards" if self.metric is None else f"scores of {self.metric}"
            raise NoSignalError(
                f"rl_config.filter_groups_enable=true: the {what} of the responses to each of the "
                f"last {without} prompts are equal, and the data has {self.prompts}:"
                " there is nothing to learn from; other data or rewards, more "
                "rl_config.n_samples_per_prompt or a higher temperature may help"
            )
        return without

    def warn_missing(self, step: int, judged: ScoredGroups) -> None:
        """Warn once if groups without a signal had to fill a step."""
        missing = self.per_step - judged.found
        if missing > 0 and not self.has_warned:
            self.warn(
                f"step {step}: {missing} of {self.per_step} groups have no signal after the "
                f"{self.most} prompts that a step may draw (rl_config.filter_groups_max_batches): "
                "their advantages are 0; see groups/without_signal for later steps"
            )
            self.has_warned = True
