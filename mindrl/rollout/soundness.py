"""What no engine can have drawn is found before anything is trained on it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mindrl.batch.rollouts import Responses

_LARGEST_LOGPROB = 1e-3
"""Above 0 by no more than rounding."""


def unsound(responses: Responses, most: Sequence[int], vocabulary: int, *, are_whole: bool) -> str:
    """Say what is wrong with responses; empty where nothing is.

    `most` is how many tokens each was asked for; of those that `are_whole` each has ended, by
    itself or there: an engine may know more stop tokens than it was told of. Tokens of a
    vocabulary are below its size.
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
    ]
    longer_B = lengths_B > most_B
    by_response: list[tuple[Tensor, Callable[[int], str]]] = [
        (longer_B, lambda at: f"{lengths_B[at]} tokens, where {most[at]} were asked for")
    ]
    if are_whole:
        cut_B = ~responses.finished_B & (lengths_B < most_B)
        by_response += [
            (lengths_B == 0, lambda _: "a response is empty"),
            (cut_B, lambda at: f"a response was cut at {lengths_B[at]} of {most[at]} tokens"),
        ]
    return next(
        (said(int(bad.nonzero()[0])) for bad, said in by_response + by_token if bad.any()), ""
    )
