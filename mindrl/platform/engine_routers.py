"""Which experts an engine's routers choose.

Layers of vllm-ascend 0.23 choose without vLLM's routers, and report to an attribute of their own if
the engine is to return routes. Those of 0.30 choose by vLLM's routers, as on other devices.
"""

import sys
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.nn import Module

_LAYERS = "vllm_ascend.ops.fused_moe.fused_moe"
_REPORTS_TO = "_ascend_routed_experts_capturer"


def watch_routers(model: Module, note: Callable[[int, Tensor], None]) -> int:
    """Call `note` in each pass with a layer and the experts [S, K] of its tokens.

    Returns the number of layers with experts; `note` receives their indices among these. Experts
    are logical ones, before any is replicated.
    """
    layers = [*_own_layers(model)]
    for index, layer in enumerate(layers):
        # A copy: with the engine's own setting its scheduler would return routes too.
        config = copy(layer.vllm_config)
        config.model_config = copy(config.model_config)
        config.model_config.enable_return_routed_experts = True
        layer.vllm_config = config
        capture = partial(_capture, note, index)
        setattr(layer, _REPORTS_TO, SimpleNamespace(capture=capture))
    if layers:
        return len(layers)
    routers = [*_routers(model)]
    for index, router in enumerate(routers):
        router.set_capture_fn(partial(note, index))
    return len(routers)


def _own_layers(model: Module) -> Iterator[Any]:
    """Yield the layers of vllm-ascend 0.23 in their order."""
    own = getattr(sys.modules.get(_LAYERS), "AscendFusedMoE", None)
    if own is not None:
        yield from (module for module in model.modules() if isinstance(module, own))


def _routers(model: Module) -> Iterator[Any]:
    """Yield vLLM's routers, of which a layer may have one under two names."""
    base = import_module("vllm.model_executor.layers.fused_moe.router.base_router").BaseRouter
    found: dict[int, Any] = {}
    for module in model.modules():
        router = getattr(module, "router", None)
        if isinstance(router, base):
            found.setdefault(id(router), router)
    yield from found.values()


def _capture(
    note: Callable[[int, Tensor], None], index: int, *, topk_ids: Tensor, layer_id: int
) -> None:
    del layer_id  # counts layers without experts too
    note(index, topk_ids)
