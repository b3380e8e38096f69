"""Gradients reduced during the backward pass, and weights gathered during the forward pass.

Megatron's hooks start both, a bucket at a time. Two things are outside of them: the gradient of the
head's weight, which does not come from autograd, and the device's phases, which need whole weights.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from megatron.core.distributed import DistributedDataParallel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


class Overlap:
    """The buckets of a model's chunks: what is reduced and gathered, and when."""

    def __init__(
        self, config: TransformerConfig, chunks: Sequence[DistributedDataParallel]
    ) -> None:
        """Watch the reductions of all chunks. The weights are whole."""
        self.groups: list[Any] = []
        self.of_parameter: dict[Tensor, Any] = {}
        for chunk in chunks:
            self.groups += [*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups]
            self.of_parameter |= chunk.param_to_bucket_group
        for group in self.groups:
            group.start_grad_sync = partial(self._reduce, group, group.start_grad_sync)
            # Otherwise the first forward pass would gather weights that are whole.
            group.param_gather_dispatched = True
        ddp_config = chunks[0].ddp_config
        self.reduces, self.gathers = ddp_config.overlap_grad_reduce, ddp_config.overlap_param_gather
        if self.reduces:
            # Only the last micro-batch completes a gradient.
            skips = [chunk.no_sync for chunk in chunks]
            config.no_sync_func = skips if len(skips) > 1 else skips[0]
        self.sums: list[Tensor] = []

    def begin(self) -> None:
        """Forget the gradients of the previous update."""
        self.sums = []

    def is_finite(self) -> bool:
        """Return whether this rank's own gradients, before their reduction, were finite."""
        # After the reduction a non-finite gradient of one replica is in the gradients of all.
        return all(bool(each.isfinite()) for each in self.sums)

    def watched(self, weight: Tensor, hidden: Tensor) -> Tensor:
        """Return the head's weight for one pack; its gradient goes directly to `main_grad`.

        With overlap it is an alias outside of autograd: the gradient is marked as complete when
        that of the hidden states is, on the thread of the backward pass. Autograd would call
        Megatron's hook on another thread, where collectives may start in another order than on
        other ranks.
        """
        group = self.of_parameter.get(weight)
        if group is None or not self.reduces:
            return weight
        alias = weight.detach()
        alias.main_grad = weight.main_grad  # type: ignore[attr-defined]
        hidden.register_hook(lambda _: group.register_grad_ready(weight))  # type: ignore[no-untyped-call]
        return alias

    def complete_weights(self) -> None:
        """Gather the weights that no forward pass has gathered since the last update.

        A collective over the data-parallel ranks, which gather the same weights after every update.
        """
        if not self.gathers:
            return
        for group in self.groups:
            # MindSpeed's start_param_sync(force_sync=True) fails for a gather under way.
            group.finish_param_sync(skip_next_bucket_dispatch=True)

    def _reduce(self, group: Any, start: Any, *given: Any, **named: Any) -> None:
        self.sums += [bucket.grad_data.sum() for bucket in group.buckets]
        start(*given, **named)
