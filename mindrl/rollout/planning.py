"""The rollout engine's tables, bytes and rules for plans.

Neither this module nor its imports import torch.
"""

from mindrl.rollout.vllm.cache import CacheSizes, cache_sizes
from mindrl.rollout.vllm.legality import cpu_attention_findings
from mindrl.rollout.vllm.legality import vllm_findings as rollout_findings
from mindrl.rollout.vllm.sharding import layers_of_ranks, whole_tensors
from mindrl.rollout.vllm.sharding import vllm_sharding as rollout_sharding

__all__ = [
    "CacheSizes",
    "cache_sizes",
    "cpu_attention_findings",
    "layers_of_ranks",
    "rollout_findings",
    "rollout_sharding",
    "whole_tensors",
]
