"""Which rollout replica answers which prompt, so that replicas end together.

The samples of a prompt stay on one replica, which then processes their prefix once. Answers to a
prompt are about as long as in an earlier epoch.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import gcd
from statistics import fmean

from mindrl.batch.balance import partition
from mindrl.batch.prompts import Prompt
from mindrl.rollout.engine import Request


@dataclass
class PromptShares:
    """Remembers the mean length of the newest answers to each prompt."""

    tokens: dict[int, float] = field(default_factory=dict)
    """Mean length by the hash of the prompt's tokens and pictures."""

    def deal(self, prompts: Sequence[Prompt], samples: int, replicas: int) -> list[list[int]]:
        """Return the rows of each replica; row `i * samples + j` is sample j of prompt i.

        Without earlier answers prompts are dealt in turn.
        """
        starts = range(0, samples * len(prompts), samples)
        groups = [
            (_key(prompt), [*range(start, start + samples)])
            for prompt, start in zip(prompts, starts, strict=True)
        ]
        return self._dealt(groups, replicas)

    def deal_requests(self, requests: Sequence[Request], replicas: int) -> list[list[int]]:
        """Return the indices of the requests of each replica.

        Started requests come first, dealt in turn, since they tend to be long. New requests are
        dealt as prompts are; adjacent ones with the same prompt stay together.
        """
        started = [place for place, request in enumerate(requests) if request.drawn]
        new = [place for place, request in enumerate(requests) if not request.drawn]
        groups = [(key, [*run]) for key, run in groupby(new, lambda at: _key(requests[at]))]
        dealt = self._dealt(groups, replicas)
        return [started[replica::replicas] + rows for replica, rows in enumerate(dealt)]

    def learn(self, prompts: Sequence[Prompt], samples: int, lengths: Sequence[int]) -> None:
        """Remember the lengths of the answers, in the order of the rows."""
        for number, prompt in enumerate(prompts):
            self.tokens[_key(prompt)] = fmean(lengths[number * samples : (number + 1) * samples])

    def learn_requests(self, requests: Sequence[Request], lengths: Sequence[int]) -> None:
        """Remember the answer lengths of new requests, with all later turns; 0 means none yet."""
        found = defaultdict[int, list[int]](list)
        for request, length in zip(requests, lengths, strict=True):
            if length and not request.drawn:
                found[_key(request)].append(length)
        self.tokens |= {key: fmean(each) for key, each in found.items()}

    def _dealt(self, groups: Sequence[tuple[int, list[int]]], replicas: int) -> list[list[int]]:
        """Return the rows of each replica, given the key of the prompt and the rows of each group.

        Divides groups if whole ones would give replicas unequal numbers of rows.
        """
        pieces = replicas // gcd(len(groups), replicas)
        parts = [
            (key, rows[len(rows) * piece // count : len(rows) * (piece + 1) // count])
            for key, rows in groups
            for count in [min(len(rows), pieces)]
            for piece in range(count)
        ]
        expected = [self.tokens.get(key) for key, _ in groups]
        if known := [tokens for tokens in expected if tokens is not None]:
            usual = fmean(known)
            costs = [(self.tokens.get(key) or usual) * len(rows) for key, rows in parts]
            # The longest begin first; short ones fill the places that become free.
            dealt = [
                sorted(share, key=lambda part: -costs[part]) for share in partition(costs, replicas)
            ]
        else:
            dealt = [[*range(replica, len(parts), replicas)] for replica in range(replicas)]
        return [[row for part in share for row in parts[part][1]] for share in dealt]


def _key(prompt: Prompt | Request) -> int:
    return hash((prompt.token_ids, prompt.images))
