"""Divide the sequences of a step into optimizer steps."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from mindrl.algorithms.chosen_tokens import TokenSelection
from mindrl.algorithms.entropy_control import EntropyControl
from mindrl.algorithms.token_weights import (
    sequence_mean_weights,
    sequence_sum_weights,
    token_mean_weights,
)
from mindrl.batch.experience import (
    Experience,
    Minibatch,
    WeightedSequences,
)
from mindrl.batch.prompts import sequence_seed
from mindrl.batch.segments import Conversations
from mindrl.config.rl import RLConfig

MinibatchT = TypeVar("MinibatchT", bound=WeightedSequences)
_UNTAUGHT = {"likely": None}
"""Tokens of a teacher, removed for the critic."""


class MinibatchDealer:
    """Assigns the prompts of a step to mini-batches, and divides the step accordingly."""

    def __init__(
        self,
        rl: RLConfig,
        seed: int,
        *,
        longest: int,
        corrects: bool = False,
        selection: TokenSelection | None = None,
    ) -> None:
        """Set the algorithm, the seed of the run, and the maximum response length.

        With `corrects` the loss also gets the engine's log-probs, with `selection` the tokens that
        it selects.
        """
        self.rl, self.seed, self.corrects, self.selection = rl, seed, corrects, selection
        weights: dict[str, Callable[[Tensor], Tensor]] = {
            "token_mean": token_mean_weights,
            "sequence_mean": sequence_mean_weights,
            "sequence_sum": partial(sequence_sum_weights, longest=longest),
        }
        self.token_weights = weights[rl.aggregation]
        self.generator = torch.Generator().manual_seed(seed) if rl.shuffle_mini_batch else None
        self.entropy: EntropyControl | None = None
        if rl.entropy_target is not None:
            self.entropy = EntropyControl(
                target=rl.entropy_target, delta=rl.entropy_delta, weight=rl.entropy_coeff
            )

    def state(self) -> str | None:
        """Return the state of the generator, in hexadecimal digits; None without one."""
        if self.generator is None:
            return None
        return bytes(self.generator.get_state().tolist()).hex()

    def load_state(self, state: str | None) -> None:
        """Restore the state of the generator."""
        if self.generator is not None and state is not None:
            self.generator.set_state(torch.tensor([*bytes.fromhex(state)], dtype=torch.uint8))

    def entropy_state(self) -> dict[str, object]:
        """Return the state of the entropy bonus, if its weight changes."""
        return {} if self.entropy is None else {"entropy": self.entropy.state()}

    def load_entropy(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the entropy bonus."""
        if self.entropy is not None:
            self.entropy.load_state(state)

    def deal(self, group_B: Tensor) -> list[Tensor]:
        """Return the rows of each optimizer step; the sequences of one prompt stay together.

        `group_B` is the index of each sequence's prompt in the step.
        """
        groups_P = torch.unique(group_B)
        dealt = []
        for _ in range(self.rl.epochs):
            if self.generator is not None:
                groups_P = groups_P[torch.randperm(len(groups_P), generator=self.generator)]
            dealt += [
                torch.cat([torch.nonzero(group_B == group)[:, 0] for group in chosen])
                for chosen in groups_P.split(self.rl.mini_batch_size)
            ]
        return dealt

    def cut(
        self, experience: Experience, dealt: Iterable[Tensor], stage: type[MinibatchT]
    ) -> Iterator[MinibatchT]:
        """Yield each optimizer step's rows with token weights, normalised over the whole update."""
        for update, rows in enumerate(dealt):
            part = experience.rows(rows)
            learned = self._learned(part)
            columns = self._of_policy(learned, update) if stage is Minibatch else _UNTAUGHT
            yield part.into(stage, **self._weights(learned), **columns)

    def _learned(self, part: Experience) -> Experience:
        """Return an update with the mask of those response tokens that enter its loss."""
        if not self.rl.overlong_filter_enable:
            return part
        mask_BT = part.response_mask_BT & part.finished_B[:, None]
        return replace(part, response_mask_BT=mask_BT)

    def _weights(self, part: Experience) -> dict[str, Tensor | None]:
        """Return the weights of an update's tokens, and their sum if it is not 1."""
        mask_BT = part.response_mask_BT
        if not mask_BT.any():
            return {"token_weights_BT": mask_BT.float()}
        talks = Conversations(mask_BT, part.conversation_B)
        weights_BT = talks.spread(self.token_weights(talks.mask()))
        if self.rl.aggregation != "sequence_sum":
            return {"token_weights_BT": weights_BT}
        return {"token_weights_BT": weights_BT, "weight_sum_B": weights_BT.sum().repeat(len(part))}

    def _of_policy(self, part: Experience, update: int) -> dict[str, Tensor | None]:
        """Return columns that only some updates of the policy use."""
        picked_BT = coef_B = None
        if self.selection is not None:
            assert part.old_logprobs_BT is not None, "a forward pass or the engine returns them"
            tokens = int(part.tokens_BT.sum())
            seed = sequence_seed(self.seed, step=tokens, uid=update, sample=0)
            picked_BT = self.selection.select(part, part.old_logprobs_BT, seed)
        if self.entropy is not None:
            coef_B = torch.full((len(part),), self.entropy.coef)
        return {
            "rollout_logprobs_BT": part.rollout_logprobs_BT if self.corrects else None,
            "picked_BT": picked_BT,
            "entropy_coef_B": coef_B,
        }
