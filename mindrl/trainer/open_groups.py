"""Start and continue groups of responses, and convert complete ones to training data.

Shapes: B responses of a step, N concatenated tokens, T positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mindrl.batch.prompts import sample_numbers, sequence_seed
from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.config.run import RunConfig
from mindrl.observability.metrics import Metrics
from mindrl.rollout.engine import Request
from mindrl.trainer.gathering import Answering
from mindrl.trainer.group_pool import OpenGroup, OpenSequence


@dataclass(frozen=True, kw_only=True)
class OpenGroups:
    """Groups of a run whose steps may train on groups of earlier steps."""

    answering: Answering
    seed: int
    """Seed of the run."""
    samples: int
    """Responses per prompt."""
    longest: int
    """Maximum tokens of a response."""

    @classmethod
    def of(cls, config: RunConfig, answering: Answering) -> "OpenGroups":
        """Create it from a configuration."""
        return cls(
            answering=answering,
            seed=config.megatron_training.seed,
            samples=config.rl_config.n_samples_per_prompt,
            longest=config.generate_config.sampling_config.max_tokens,
        )

    def begun(
        self, step: int, place: int, count: int, before: Sequence[int] = ()
    ) -> list[OpenGroup]:
        """Start `count` groups from an index in the order; `before` are the step's earlier ones."""
        indices = self.answering.order.indices(place, count)
        prompts = self.answering.prompts
        uids = [prompts[each].uid for each in (*before, *indices) for _ in range(self.samples)]
        numbers = iter(sample_numbers(uids)[len(before) * self.samples :])
        return [
            OpenGroup(
                index=index,
                born=step,
                sequences=tuple(OpenSequence.begun(next(numbers)) for _ in range(self.samples)),
            )
            for index in indices
        ]

    def request(self, group: OpenGroup, number: int) -> Request:
        """Return the request for the rest of a response."""
        prompt, sequence = self.answering.prompts[group.index], group.sequences[number]
        drawn = len(sequence.tokens_N)
        return Request(
            token_ids=(*prompt.token_ids, *sequence.tokens_N.tolist()),
            drawn=drawn,
            seed=sequence_seed(
                self.seed, step=group.born, uid=prompt.uid, sample=sequence.sample, drawn=drawn
            ),
        )

    def rollouts(self, step: int, groups: Sequence[OpenGroup]) -> Rollouts:
        """Return complete groups as rollouts, with the age of each token."""
        sequences = [each for group in groups for each in group.sequences]
        responses = Responses(
            token_ids_N=torch.cat([each.tokens_N for each in sequences]),
            logprobs_N=torch.cat([each.logprobs_N for each in sequences]),
            lengths_B=torch.tensor([len(each.tokens_N) for each in sequences]),
            finished_B=torch.tensor([each.finished for each in sequences]),
        )
        asked = [self.answering.prompts[group.index].token_ids for group in groups]
        order = [place for place in range(len(groups)) for _ in range(self.samples)]
        rollouts = Rollouts.from_responses(asked, responses, order)
        ages_N = step - torch.cat([each.steps_N for each in sequences])
        return rollouts.with_ages(ages_N) if ages_N.any() else rollouts

    def drawn_in(self, step: int, groups: Sequence[OpenGroup], most: int) -> Rollouts | None:
        """Return at most `most` responses, complete or not, masked to tokens of a step's weights.

        None if there are no such tokens.
        """
        there = [each for group in groups for each in group.sequences]
        if not any((each.steps_N == step).any() for each in there):
            return None
        laid_out = self.rollouts(step, groups)
        mask_BT = laid_out.response_mask_BT
        if laid_out.ages_BT is not None:
            mask_BT = mask_BT & (laid_out.ages_BT == 0)
        rows_B = mask_BT.any(dim=1).nonzero()[:most, 0]
        of_one = torch.zeros_like(laid_out.group_B)
        return replace(laid_out, response_mask_BT=mask_BT, group_B=of_one).rows(rows_B)


def staleness(step: int, trained: Sequence[OpenGroup], left: Sequence[OpenGroup]) -> Metrics:
    """Return metrics about the age of a step's data, and the groups that it leaves open."""
    ages_N = step - torch.cat([each.steps_N for group in trained for each in group.sequences])
    open_tokens = sum(len(each.tokens_N) for group in left for each in group.sequences)
    return {
        "staleness/mean": ages_N.double().mean().item(),
        "staleness/max": float(max(step - group.born for group in trained)),
        "staleness/stale_tokens": (ages_N > 0).double().mean().item(),
        "staleness/open_groups": float(len(left)),
        "staleness/open_tokens": float(open_tokens),
    }
