"""The rollout engine's tables, bytes and rules for plans.

Neither this module nor its imports import torch.
"""

from mindrl.rollout.vllm.cache import CacheSizes, cache_sizes
from mindrl.rollout.vllm.captures import WITHOUT_PARTS, captures, decode_tokens, graph_mode
from mindrl.rollout.vllm.legality import cpu_attention_findings
from mindrl.rollout.vllm.legality import vllm_findings as rollout_findings
from mindrl.rollout.vllm.sharding import layers_of_ranks, whole_tensors
from mindrl.rollout.vllm.sharding import vllm_sharding as rollout_sharding

__all__ = [
    "WITHOUT_PARTS",
    "CacheSizes",
    "cache_sizes",
    "captures",
    "cpu_attention_findings",
    "decode_tokens",
    "graph_mode",
    "layers_of_ranks",
    "rollout_findings",
    "rollout_sharding",
    "whole_tensors",
]
