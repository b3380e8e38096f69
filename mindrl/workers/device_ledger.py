"""Ledger of a device: its large regions by name, and the memory limit."""

from collections.abc import Iterator
from contextlib import contextmanager

from mindrl.errors import DeviceMemoryError, ResidueError
from mindrl.memory.schedule import Region
from mindrl.observability.units import mib_text
from mindrl.workers.device_regions import DeviceRegion


class DeviceLedger:
    """Tracks the regions of one device.

    Raises DeviceMemoryError if a region would exceed the capacity together with the present ones.
    The host has no limit per device, so the configured one is checked here before each allocation,
    as a device's allocator would.
    """

    def __init__(self, capacity_bytes: int | None) -> None:
        """Start with an empty device; with a capacity of None the total is not limited."""
        self.capacity_bytes = capacity_bytes
        self.regions: dict[Region, DeviceRegion] = {}
        self.staging_bytes = 0
        self.peak_bytes = 0
        self.fullest: dict[Region, int] = {}
        """Regions at the fullest moment since this was last cleared."""

    def add(self, name: Region, region: DeviceRegion) -> None:
        """Register a region that is on the device."""
        assert name not in self.regions, name
        self._check(name.value, region.device_bytes())
        self.regions[name] = region
        self.note()

    def replace(self, name: Region, region: DeviceRegion) -> None:
        """Register another region under a name that has left the device.

        Raises:
            ResidueError: The present region is still on the device.
        """
        self.require_gone(name)
        self._check(name.value, region.device_bytes())
        self.regions[name] = region
        self.note()

    def region_bytes(self) -> dict[Region, int]:
        """Return each region's bytes on the device, from its storages."""
        found = {name: region.device_bytes() for name, region in self.regions.items()}
        found[Region.STAGING] = self.staging_bytes
        return {name: found[name] for name in Region if found.get(name)}

    def host_bytes(self) -> dict[Region, int]:
        """Return the bytes of regions on the host only; released contents are not included."""
        found = {name: self.regions[name] for name in Region if name in self.regions}
        away = {name: each for name, each in found.items() if not each.device_bytes()}
        return {name: each.nbytes for name, each in away.items() if each.keeps}

    def is_complete(self, name: Region) -> bool:
        """Return whether all of a region is on the device."""
        return self.regions[name].device_bytes() == self.regions[name].nbytes

    def onload(self, name: Region) -> int:
        """Load a region; return the bytes copied to the device."""
        region = self.regions[name]
        self._check(name.value, region.nbytes - region.device_bytes())
        try:
            copied = region.onload()
        except RuntimeError as error:
            # Torch's own error is a subclass, and an engine's allocator raises only RuntimeError.
            if "out of memory" not in str(error).lower():
                raise
            # A partly loaded region would block the memory of the next one.
            region.offload()
            raise self._no_room(name.value, region.nbytes) from error
        self.note()
        return copied

    def offload(self, name: Region) -> int:
        """Offload a region; return the bytes copied to the host.

        Raises:
            ResidueError: A part of it is still on the device.
        """
        copied = self.regions[name].offload()
        self.require_gone(name)
        return copied

    @contextmanager
    def staging(self, nbytes: int) -> Iterator[None]:
        """Count messages in flight as device memory in the body."""
        self._check(Region.STAGING.value, nbytes)
        self.staging_bytes = nbytes
        self.note()
        try:
            yield
        finally:
            self.staging_bytes = 0

    def require_gone(self, *names: Region) -> None:
        """Check that regions have no bytes on the device.

        Raises:
            ResidueError: A region has some; this is a bug in mindrl.
        """
        for name in names:
            left = self.regions[name].device_bytes()
            if left:
                raise ResidueError(f"{left} bytes of {name.value} are still on the device")

    def flush_peak(self) -> int:
        """Return the maximum total of all regions since the last call."""
        peak, self.peak_bytes = self.peak_bytes, 0
        self.note()
        return peak

    def note(self) -> None:
        """Update the peak; call it before memory is released outside of the ledger."""
        there = self.region_bytes()
        total = sum(there.values())
        self.peak_bytes = max(self.peak_bytes, total)
        if total > sum(self.fullest.values()):
            self.fullest = there

    def _check(self, name: str, more_bytes: int) -> None:
        there = sum(self.region_bytes().values())
        if self.capacity_bytes is not None and there + more_bytes > self.capacity_bytes:
            raise self._no_room(name, more_bytes)

    def _no_room(self, name: str, nbytes: int) -> DeviceMemoryError:
        sizes = [f"{each.value} {mib_text(size)}" for each, size in self.region_bytes().items()]
        bound = "" if self.capacity_bytes is None else f" of {mib_text(self.capacity_bytes)}"
        return DeviceMemoryError(
            f"out of device memory{bound}: {name} needs {mib_text(nbytes)} more; on the device: "
            f"{', '.join(sizes) or 'no region'}"
        )
