"""Detect responses that no engine can have sampled, before any training on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mindrl.batch.rollouts import Responses
from mindrl.rollout.engine import Sampling

_LARGEST_LOGPROB = 1e-3
"""Largest accepted log-prob: rounding may exceed 0."""
_CERTAIN_LOGPROB = -5e-8
"""A log-prob above it is 0 in float32, where the largest negative result of a log-softmax is
-6e-8."""
CERTAIN_TOKENS = 512
"""Consecutive tokens with a log-prob of 0 that no engine samples from a full distribution. If one
in 20 tokens is uncertain, a run of this length has a probability of 4e-12."""
_MOST_OF_ONE = 64
"""Maximum tokens of one response among these: one that repeats itself is certain of each."""
_COLDEST = 0.5
"""Lowest checked temperature: a lower one makes more tokens certain."""


@dataclass
class CertainRow:
    """Counts consecutive tokens, over responses, whose log-probs are all 0."""

    tokens: int = 0

    def add(self, logprobs: Sequence[float], sampling: Sampling) -> str:
        """Add the log-probs of one response; return what is wrong with the run, or an empty string.

        Greedy responses, those of a truncated distribution (it may have one token) and those below
        a temperature of 0.5 are not checked: there a correct engine may be certain of each token.
        """
        section = sampling.section
        if sampling.is_greedy or section.cuts or section.temperature < _COLDEST:
            return ""
        is_certain = all(each > _CERTAIN_LOGPROB for each in logprobs)
        self.tokens = self.tokens + min(len(logprobs), _MOST_OF_ONE) if is_certain else 0
        if self.tokens < CERTAIN_TOKENS:
            return ""
        return (
            f"the log-probs of {self.tokens} tokens in a row are 0 at temperature "
            f"{section.temperature:g}, as if every other token had probability 0"
        )


def response_error(
    responses: Responses, most: Sequence[int], vocabulary: int, *, are_complete: bool
) -> str:
    """Return what is wrong with responses; empty if they are possible.

    `most` is the requested maximum of tokens of each. With `are_complete`, each must have ended by
    itself or at its maximum: an engine may have more stop tokens than were configured. Token ids
    must be below the vocabulary size. A token whose probability is 0 in float64, below about -745
    nats, cannot be sampled.
    """
    lengths_B, tokens_N = responses.lengths_B, responses.token_ids_N
    if len(lengths_B) != len(most):
        return f"{len(lengths_B)} responses to {len(most)} requests"
    most_B, logprobs_N = torch.tensor(most, dtype=torch.int64), responses.logprobs_N
    bad_N = (tokens_N < 0) | (tokens_N >= vocabulary)
    by_token: list[tuple[Tensor, Callable[[int], str]]] = [
        (bad_N, lambda at: f"token {tokens_N[at]} is outside the vocabulary of {vocabulary}"),
        (~logprobs_N.isfinite(), lambda at: f"a log-prob is {logprobs_N[at]:g}"),
        (logprobs_N > _LARGEST_LOGPROB, lambda at: f"a log-prob is {logprobs_N[at]:g}, above 0"),
        (
            logprobs_N.double().exp() == 0,
            lambda at: f"a log-prob is {logprobs_N[at]:g}: the probability of that token is 0",
        ),
    ]
    longer_B = lengths_B > most_B
    by_response: list[tuple[Tensor, Callable[[int], str]]] = [
        (longer_B, lambda at: f"{lengths_B[at]} tokens, but the limit was {most[at]}")
    ]
    if are_complete:
        cut_B = ~responses.finished_B & (lengths_B < most_B)
        by_response += [
            (lengths_B == 0, lambda _: "a response is empty"),
            (cut_B, lambda at: f"a response was cut off at {lengths_B[at]} of {most[at]} tokens"),
        ]
    return next(
        (said(int(bad.nonzero()[0])) for bad, said in by_response + by_token if bad.any()), ""
    )
