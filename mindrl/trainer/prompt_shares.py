"""Which rollout replica answers which prompt, so that replicas end together.

The samples of a prompt stay on one replica, which then processes their prefix once. Prompts have
about as many tokens in their answers as in an earlier epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from statistics import fmean

from mindrl.batch.balance import partition
from mindrl.batch.prompts import Prompt


@dataclass
class PromptShares:
    """Remembers the mean length of the newest answers to each prompt."""

    tokens: dict[int, float] = field(default_factory=dict)
    """By the hash of the prompt: its tokens and pictures."""

    def deal(self, prompts: Sequence[Prompt], samples: int, replicas: int) -> list[list[int]]:
        """Return the rows of each replica; row `i * samples + j` is sample j of prompt i.

        Without earlier answers prompts are dealt in turn.
        """
        # Prompts are divided where whole ones would give replicas unequal numbers of samples.
        pieces = min(samples, replicas // gcd(len(prompts), replicas))
        parts = [
            range(first + samples * piece // pieces, first + samples * (piece + 1) // pieces)
            for first in range(0, samples * len(prompts), samples)
            for piece in range(pieces)
        ]
        expected = [self.tokens.get(_key(prompt)) for prompt in prompts]
        if known := [tokens for tokens in expected if tokens is not None]:
            usual = fmean(known)
            each = [tokens or usual for tokens in expected for _ in range(pieces)]
            costs = [tokens * len(part) for tokens, part in zip(each, parts, strict=True)]
            # The longest begin first, and the short ones fill the places that become free.
            dealt = [
                sorted(share, key=lambda part: -costs[part]) for share in partition(costs, replicas)
            ]
        else:
            dealt = [[*range(replica, len(parts), replicas)] for replica in range(replicas)]
        return [[row for part in share for row in parts[part]] for share in dealt]

    def learn(self, prompts: Sequence[Prompt], samples: int, lengths: Sequence[int]) -> None:
        """Remember the lengths of the answers, in the order of the rows."""
        for number, prompt in enumerate(prompts):
            self.tokens[_key(prompt)] = fmean(lengths[number * samples : (number + 1) * samples])


def _key(prompt: Prompt) -> int:
    return hash((prompt.token_ids, prompt.images))
