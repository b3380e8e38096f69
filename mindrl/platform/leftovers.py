"""Tensors that an engine loses while it sleeps.

While an engine sleeps, the device memory of its weights is unmapped. vllm-ascend saves registered
buffers only. Its release 0.23 keeps the rotary tables of latent attention in a module, and
0.30.0rc2 the expert map of a rank in an attribute; both have undefined contents after a wake-up.
A model that drafts loses its weights on every device, and no reshard brings them back.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.nn import Module

from mindrl.platform.device import Platform

_ROTARY = "vllm_ascend.ops.rotary_embedding"
_TABLES = "_cos_cache", "_sin_cache"


@dataclass(frozen=True)
class Leftovers:
    """Tensors that an engine loses while it sleeps, and their contents on the host."""

    tensors: list[Tensor]
    contents: list[Tensor]

    @classmethod
    def of(cls, model: Module, platform: Platform, draft: Module | None = None) -> "Leftovers":
        """Copy these tensors from an awake engine.

        Besides those of a drafting model, only vllm-ascend has any. On a CPU a drafting model stays
        in memory.
        """
        tensors = [] if platform.kind != "npu" else [*_tables(), *_attributes(model)]
        if draft is not None and platform.kind != "cpu":
            tensors += [each.data for each in (*draft.parameters(), *draft.buffers())]
        return cls(tensors, [each.clone().cpu() for each in tensors])

    def restore(self) -> None:
        """Write their contents, once the memory of the weights is mapped again."""
        for tensor, content in zip(self.tensors, self.contents, strict=True):
            tensor.copy_(content)


def _tables() -> Iterator[Tensor]:
    for name in _TABLES:
        table = getattr(sys.modules.get(_ROTARY), name, None)
        if isinstance(table, Tensor) and _is_on_device(table):
            yield table


def _attributes(model: Module) -> Iterator[Tensor]:
    """Yield plain attributes of modules that have memory of their own."""
    known = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        for value in vars(module).values():
            if not isinstance(value, Tensor) or not _is_on_device(value):
                continue
            address = value.untyped_storage().data_ptr()
            if address not in known:
                known.add(address)
                yield value


def _is_on_device(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu"
