"""Activation recomputation in the backward pass, and compilation of layers.

Both replace a layer's `forward`: no module wraps the layer, so parameters keep their names.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from mindrl.config.archon import ArchonConfig
from mindrl.platform.attention import ATTENTION_OPERATIONS
from mindrl.training.archon.network import Network

_PRODUCTS = frozenset({"aten::mm", "aten::addmm"})
_KEPT = (
    _PRODUCTS
    | ATTENTION_OPERATIONS
    | {
        # Results of communication.
        "_c10d_functional::all_to_all_single",
        "_c10d_functional::reduce_scatter_tensor",
    }
)
"""Operations whose results are kept because they are expensive, as torchtitan chooses them."""


def prepare_layers(network: Network, options: ArchonConfig, *, backend: str = "inductor") -> None:
    """Compile and checkpoint layers as the options say, before their weights are sharded."""
    every = _interval(options)
    is_by_operation = options.ac_mode == "selective" and options.selective_ac_option == "op"
    compiler: str | _Budgeted = backend
    if options.enable_compile:
        if options.ac_mode == "memory_budget":
            compiler = _Budgeted(backend=backend, budget=options.ac_memory_budget)
        # A backward pass in two halves reads buffers that a graph would otherwise donate after the
        # first half.
        torch._functorch.config.donated_buffer = False
    for index, layer in enumerate(network.layers):
        forward: Callable[..., torch.Tensor] = layer.forward
        if options.enable_compile:
            # Packs differ in length: use one graph for all.
            forward = _compiling(torch.compile(forward, dynamic=True, backend=compiler))
        if every and (index + 1) % every == 0:
            context: dict[str, Any] = {"context_fn": _by_operation} if is_by_operation else {}
            forward = partial(
                checkpoint,
                forward,
                use_reentrant=False,
                # Nothing in a layer is random.
                preserve_rng_state=False,
                debug=options.ac_debug,
                **context,
            )
        layer.forward = forward  # type: ignore[method-assign]


@dataclass(frozen=True, kw_only=True)
class _Budgeted:
    """A compiler backend that lets a layer keep a fraction of its activations.

    The compiler reads the fraction when it is called, which is at the first pass. Roles have equal
    layers, and graphs are shared by those whose backends are equal.
    """

    backend: str
    budget: float

    def __call__(self, graph: GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        with torch._functorch.config.patch(activation_memory_budget=self.budget):
            return torch._dynamo.lookup_backend(self.backend)(graph, inputs)


def _compiling(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Enable compilation for a layer, even if the process disables it, as workers on CPU do."""

    def run(*given: Any, **named: Any) -> torch.Tensor:
        with torch._dynamo.config.patch(disable=False):
            return forward(*given, **named)

    return run


def _interval(options: ArchonConfig) -> int:
    """Return n if every n-th layer is recomputed, 0 for none."""
    match options.ac_mode:
        case "full":
            return 1
        case "selective":
            asked = options.selective_ac_option
            return 1 if asked == "op" else int(asked)
        case _:
            return 0


def _by_operation() -> Any:
    """Keep the results of attention, of communication, and of every second matrix product."""
    seen: Counter[bool] = Counter()

    def policy(context: Any, operation: Any, *_: object, **__: object) -> CheckpointPolicy:
        name = operation.name().partition(".")[0]
        if name in _PRODUCTS:
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        kept = name in _KEPT
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
