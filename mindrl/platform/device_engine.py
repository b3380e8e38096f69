"""What an engine needs of mindrl because of vllm-ascend: options, and tensors that it loses.

While an engine sleeps, the device memory of its weights is unmapped. vllm-ascend saves registered
buffers only. Its release 0.23 keeps the rotary tables of latent attention in a module, and
0.30.0rc2 the expert map of a rank in an attribute; both have undefined contents after a wake-up.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version
from torch import Tensor
from torch.nn import Module

from mindrl.platform.device import Platform

_FOR_TRAINING = Version("0.30.0.dev0")
"""Release of vllm-ascend whose engine must know that its weights will change."""
_ROTARY = "vllm_ascend.ops.rotary_embedding"
_TABLES = "_cos_cache", "_sin_cache"


def engine_options(platform: Platform) -> Mapping[str, object]:
    """Return the arguments of a run's engine that depend on the device and its plugin."""
    if platform.kind != "npu":
        return platform.engine_options
    try:
        installed = Version(version("vllm-ascend"))
    except PackageNotFoundError:
        return platform.engine_options
    if installed < _FOR_TRAINING:
        return platform.engine_options
    # Without it the engine casts weights to a layout that cannot be written in place, and raises at
    # a wake-up. Earlier releases read an environment variable instead, and refuse this key.
    return {**platform.engine_options, "additional_config": {"rl_config": {"enabled": True}}}


@dataclass(frozen=True)
class Leftovers:
    """Tensors that an engine loses while it sleeps, and their contents on the host."""

    tensors: list[Tensor]
    contents: list[Tensor]

    @classmethod
    def of(cls, model: Module, platform: Platform) -> "Leftovers":
        """Copy them from an engine that is awake; only vllm-ascend has any."""
        tensors = [] if platform.kind != "npu" else [*_tables(), *_attributes(model)]
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
