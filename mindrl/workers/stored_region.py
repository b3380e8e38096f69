"""Storages on the device: offloaded and onloaded without moving a pointer.

Resizing a storage to zero frees its memory while every view of it stays valid, on NPU, CUDA and
CPU alike.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, UntypedStorage

from mindrl.platform.copies import Copies
from mindrl.platform.host_arena import HostArena, HostPlace


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A storage, its size on the device, and its place on the host."""

    storage: UntypedStorage
    nbytes: int
    place: HostPlace | None
    """None where the contents are not kept."""

    def device_parts(self, place: HostPlace) -> Sequence[Tensor]:
        """Look at the bytes on the device as they are cut on the host."""
        return _bytes(self.storage).split_with_sizes([len(part) for part in place.parts])


class StoredRegion:
    """Storages that leave the device together and come back to where they were.

    The host's copy is written only when the region has changed since, and stays where it is: a
    region that nothing changed leaves without a copy.
    """

    def __init__(
        self, tensors: Iterable[Tensor], arena: HostArena | None, device_type: str
    ) -> None:
        """Take over the storages behind some tensors, all of them on the device.

        Args:
            tensors: Any views; each storage is treated once.
            arena: Where the contents are kept. None drops them: they come back as garbage.
            device_type: Of the device.
        """
        self.stored = {
            storage._cdata: _Stored(
                storage=storage,
                nbytes=storage.nbytes(),
                place=None if arena is None else arena.take(storage.nbytes()),
            )
            for storage in _storages(tensors)
        }
        self.nbytes = sum(each.nbytes for each in self.stored.values())
        self.keeps = arena is not None
        self.is_clean = False
        self.is_whole = True
        """All of it is on the device."""
        self.offloaded_bytes = 0
        self.copies = Copies(device_type)

    def device_bytes(self) -> int:
        """Return what lies on the device, by the storages themselves."""
        return sum(each.storage.nbytes() for each in self.stored.values())

    def changed(self) -> None:
        """Take note that the host's copy is out of date."""
        self.is_clean = False

    def offload(self) -> int:
        """Leave the device; returns the bytes copied to the host since the region came."""
        # What left early may still be on its way.
        self.copies.finish()
        copied, self.offloaded_bytes = self.offloaded_bytes, 0
        copied += sum(self._offload(each) for each in self.stored.values())
        self.copies.finish()
        self.is_clean = self.keeps
        return copied

    def offload_storage_of(self, tensor: Tensor) -> None:
        """Let the storage behind a tensor leave, ahead of the others and of `offload`."""
        self.offloaded_bytes += self._offload(self.stored[tensor.untyped_storage()._cdata])

    def onload(self) -> int:
        """Come to the device; returns the bytes copied. Contents that were dropped are garbage."""
        # What left early, behind a reshard that then failed, may still be on its way out.
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
        self.is_whole = True
        return copied

    def host_copy(self, tensor: Tensor) -> Tensor:
        """Return the host's copy of a tensor of this region, which must not be written to."""
        place = self.stored[tensor.untyped_storage()._cdata].place
        assert place is not None, "the contents of this region are not kept"
        assert self.is_clean, "the host has no copy yet"
        assert tensor.is_contiguous(), "its bytes do not follow each other"
        start = int(tensor.storage_offset()) * tensor.element_size()
        return place.read(start, start + tensor.nbytes).view(tensor.dtype).view(tensor.shape)

    def _offload(self, stored: _Stored) -> int:
        if stored.storage.nbytes() == 0:
            return 0
        self.is_whole = False
        if stored.place is None or self.is_clean:
            stored.storage.resize_(0)
            return 0
        parts = zip(stored.place.parts, stored.device_parts(stored.place), strict=True)
        self.copies.start(parts, lambda: stored.storage.resize_(0))
        return stored.nbytes


def _storages(tensors: Iterable[Tensor]) -> Iterator[UntypedStorage]:
    seen: set[int] = set()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen and storage.nbytes():
            seen.add(storage._cdata)
            yield storage


def _bytes(storage: UntypedStorage) -> Tensor:
    """Look at a storage as a tensor of its bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
