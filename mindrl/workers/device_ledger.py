"""The account of a device: every large thing on it, by name, and what there is room for."""

from collections.abc import Iterator
from contextlib import contextmanager

from mindrl.errors import DeviceMemoryError, ResidueError
from mindrl.memory.schedule import Region
from mindrl.observability.units import mib_text
from mindrl.workers.device_regions import DeviceRegion


class DeviceLedger:
    """Knows the regions of one device.

    What would not fit beside those that are there is refused with a DeviceMemoryError. The host
    plays the device where there is none: it has no bound of its own, so the one that is set is kept
    here, before each allocation, as the allocator of a device does.
    """

    def __init__(self, capacity_bytes: int | None) -> None:
        """Begin with an empty device; a capacity of None sets all regions together no bound."""
        self.capacity_bytes = capacity_bytes
        self.regions: dict[Region, DeviceRegion] = {}
        self.staging_bytes = 0
        self.peak_bytes = 0
        self.fullest: dict[Region, int] = {}
        """What was there when most was there, of all moments since this was emptied."""

    def add(self, name: Region, region: DeviceRegion) -> None:
        """Enter a region, which is on the device."""
        assert name not in self.regions, name
        self._check(name.value, region.device_bytes())
        self.regions[name] = region
        self.note()

    def region_bytes(self) -> dict[Region, int]:
        """Return what each region has on the device, by its own storages."""
        found = {name: region.device_bytes() for name, region in self.regions.items()}
        found[Region.STAGING] = self.staging_bytes
        return {name: found[name] for name in Region if found.get(name)}

    def host_bytes(self) -> dict[Region, int]:
        """Return what lies on the host alone; what is in neither place was released for good."""
        found = {name: self.regions[name] for name in Region if name in self.regions}
        away = {name: each for name, each in found.items() if not each.device_bytes()}
        return {name: each.nbytes for name, each in away.items() if each.keeps}

    def is_whole(self, name: Region) -> bool:
        """Say whether all of a region is on the device."""
        return self.regions[name].device_bytes() == self.regions[name].nbytes

    def onload(self, name: Region) -> int:
        """Let a region come; returns the bytes copied to the device."""
        region = self.regions[name]
        self._check(name.value, region.nbytes - region.device_bytes())
        try:
            copied = region.onload()
        except RuntimeError as error:
            # Torch's own error is a kind of it, and an engine's allocator has no other.
            if "out of memory" not in str(error).lower():
                raise
            # A part of it would be in the way of whatever comes instead.
            region.offload()
            raise self._no_room(name.value, region.nbytes) from error
        self.note()
        return copied

    def offload(self, name: Region) -> int:
        """Let a region leave; returns the bytes copied to the host.

        Raises:
            ResidueError: Some of it is still there.
        """
        copied = self.regions[name].offload()
        self.require_gone(name)
        return copied

    @contextmanager
    def staging(self, nbytes: int) -> Iterator[None]:
        """Account for messages in flight."""
        self._check(Region.STAGING.value, nbytes)
        self.staging_bytes = nbytes
        self.note()
        try:
            yield
        finally:
            self.staging_bytes = 0

    def require_gone(self, *names: Region) -> None:
        """Make sure that regions have nothing on the device.

        Raises:
            ResidueError: One has; a defect of ours.
        """
        for name in names:
            left = self.regions[name].device_bytes()
            if left:
                raise ResidueError(f"{left} bytes of {name.value} are still on the device")

    def flush_peak(self) -> int:
        """Return the most that all regions took together since the last call."""
        peak, self.peak_bytes = self.peak_bytes, 0
        self.note()
        return peak

    def note(self) -> None:
        """Take note of what is there: before something leaves that no move of ours releases."""
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
            f"out of device memory{bound}: {name} needs {mib_text(nbytes)} more beside "
            f"{', '.join(sizes) or 'nothing'}"
        )
