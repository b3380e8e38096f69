"""Regions that move to and from the device as a unit: storages of a model, or an engine's.

Resizing a storage to zero frees its memory and keeps every view of it valid, on NPU, CUDA and CPU.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Event

import torch
from torch import Tensor, UntypedStorage

from mindrl.observability.progress import PROGRESS
from mindrl.platform.copies import Copies
from mindrl.platform.host_arena import HostArena, HostPlace
from mindrl.rollout.engine import EngineTag, RolloutEngine


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A storage, its size on the device, and its place on the host."""

    storage: UntypedStorage
    nbytes: int
    place: HostPlace | None
    """None if the contents are not kept."""
    changes: bool = True
    """Whether updates change its contents after the first copy to the host."""

    def device_parts(self, place: HostPlace) -> Sequence[Tensor]:
        """Return views of the bytes on the device, split like the parts on the host."""
        empty = torch.empty(0, dtype=torch.uint8, device=self.storage.device)
        return empty.set_(self.storage).split_with_sizes([len(part) for part in place.parts])


class StoredRegion:
    """Storages that leave the device together and return to the same tensors.

    The host's copy is written only if the region has changed, and is kept: an unchanged region
    leaves without a copy.
    """

    def __init__(
        self,
        tensors: Iterable[Tensor],
        arena: HostArena | None,
        device_type: str,
        unchanging: Iterable[Tensor] = (),
        complete: Callable[[], None] = lambda: None,
    ) -> None:
        """Manage the storages of `tensors`, all of them on the device.

        Their contents are kept in the arena. Without an arena they are dropped, and uninitialised
        after loading. The storages of `unchanging` are copied to the host once. `complete` waits
        until the contents are whole after updates.
        """
        still = {tensor.untyped_storage()._cdata for tensor in unchanging}
        storages = {each._cdata: each for each in (tensor.untyped_storage() for tensor in tensors)}
        self.stored = {
            key: _Stored(
                storage=storage,
                nbytes=storage.nbytes(),
                place=None if arena is None else arena.take(storage.nbytes()),
                changes=key not in still,
            )
            for key, storage in storages.items()
            if storage.nbytes()
        }
        self.nbytes = sum(each.nbytes for each in self.stored.values())
        """Total bytes on the device when fully loaded."""
        self.complete = complete
        self.keeps = arena is not None
        """Whether the contents are kept on the host while offloaded; otherwise they are lost."""
        self.is_clean = False
        self.was_kept = False
        """Whether the host has had a complete copy."""
        self.is_complete = True
        """Whether all of it is on the device."""
        self.offloaded_bytes = 0
        self.copies = Copies(device_type)
        self.unread = Event()
        """Set while no thread reads the host's copy, so it may be overwritten."""
        self.unread.set()
        self.waited_seconds = 0.0

    def device_bytes(self) -> int:
        """Return the bytes on the device, from the storages themselves."""
        return sum(each.storage.nbytes() for each in self.stored.values())

    def changed(self) -> None:
        """Mark the host's copy as out of date."""
        self.is_clean = False

    def offload(self) -> int:
        """Offload; return the bytes copied to the host since the region was loaded."""
        # Storages offloaded early may still be copying.
        self.copies.finish()
        copied, self.offloaded_bytes = self.offloaded_bytes, 0
        copied += sum(self._offload(each) for each in self.stored.values())
        self.copies.finish()
        self.is_clean = self.was_kept = self.keeps
        return copied

    def offload_storage_of(self, tensor: Tensor) -> None:
        """Offload a tensor's storage early, before the others."""
        self.offloaded_bytes += self._offload(self.stored[tensor.untyped_storage()._cdata])

    def onload(self) -> int:
        """Load; return the bytes copied. Contents that were dropped are uninitialised."""
        # Storages offloaded early, before a reshard that failed, may still be copying.
        self.copies.finish()
        copied = 0
        for each in self.stored.values():
            if each.storage.nbytes() == each.nbytes:
                continue
            each.storage.resize_(each.nbytes)
            if each.place is not None:
                parts = zip(each.device_parts(each.place), each.place.parts, strict=True)
                self.copies.start(parts, lambda: None)
                copied += each.nbytes
        self.copies.finish()
        self.is_complete = True
        return copied

    def hold(self) -> None:
        """Lock the host's copy until `let_go`: writes to it wait."""
        self.unread.clear()

    def let_go(self) -> None:
        """Unlock the host's copy; from any thread."""
        self.unread.set()

    def flush_waited(self) -> float:
        """Return the seconds since the last call that copies waited for `let_go`."""
        waited, self.waited_seconds = self.waited_seconds, 0.0
        return waited

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor's storage belongs to this region."""
        return tensor.untyped_storage()._cdata in self.stored

    def host_copy(self, tensor: Tensor) -> Tensor:
        """Return the host's copy of a tensor of this region; do not write to it."""
        place = self.stored[tensor.untyped_storage()._cdata].place
        assert place is not None, "the contents of this region are not kept"
        assert self.is_clean, "the host has no current copy"
        assert tensor.is_contiguous(), "the tensor is not contiguous"
        start = int(tensor.storage_offset()) * tensor.element_size()
        return place.read(start, start + tensor.nbytes).view(tensor.dtype).view(tensor.shape)

    def _offload(self, stored: _Stored) -> int:
        if stored.storage.nbytes() == 0:
            return 0
        self.is_complete = False
        is_there = self.is_clean or (self.was_kept and not stored.changes)
        if stored.place is None or is_there:
            stored.storage.resize_(0)
            return 0
        began = time.perf_counter()
        with PROGRESS.waiting():
            self.unread.wait()
        self.waited_seconds += time.perf_counter() - began
        parts = zip(stored.place.parts, stored.device_parts(stored.place), strict=True)
        self.copies.start(parts, lambda: stored.storage.resize_(0))
        return stored.nbytes


class RolloutRegion:
    """The weights or the KV cache of a rollout engine; never copied to the host."""

    keeps = False

    def __init__(self, engine: RolloutEngine, tag: EngineTag) -> None:
        self.engine = engine
        self.tag: EngineTag = tag
        self.nbytes = engine.nbytes(tag)

    def device_bytes(self) -> int:
        """Return the bytes on the device now."""
        return self.engine.device_bytes(self.tag)

    def onload(self) -> int:
        """Allocate it."""
        self.engine.onload(self.tag)
        return 0

    def offload(self) -> int:
        """Offload the whole engine, which cannot offload parts."""
        self.engine.offload()
        return 0

    def changed(self) -> None:
        """Do nothing: no copy is kept."""

    def complete(self) -> None:
        """Do nothing: no update changes it."""


DeviceRegion = StoredRegion | RolloutRegion
