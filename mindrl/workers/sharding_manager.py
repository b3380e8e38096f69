"""Executes the memory schedule: which regions are on the device in each phase."""

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from mindrl.memory.schedule import (
    CHANGED_BY,
    DEAD_AFTER_USE,
    ROLLOUT_REGIONS,
    SENDING,
    Move,
    MoveKind,
    Phase,
    Region,
    after,
    label_of,
    leaving,
    moves,
)
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.observability.trace import TRACE
from mindrl.platform.device_memory import device_account
from mindrl.workers.device_ledger import DeviceLedger
from mindrl.workers.device_regions import DeviceRegion
from mindrl.workers.weight_sync import WeightSync

logger = logging.getLogger(__name__)


class ShardingManager:
    """Switches one device between its phases, releasing before it allocates."""

    def __init__(
        self,
        ledger: DeviceLedger,
        resharder: WeightSync | None,
        *,
        movable: Collection[Region],
        device_type: str,
    ) -> None:
        """Start with a device that holds only regions which may not leave.

        The ledger has all its regions, on the device or not; `movable` regions leave it while
        unused. `resharder` is None if rollout has its own devices.
        """
        self.ledger = ledger
        self.resharder = resharder
        self.movable = frozenset(movable)
        self.device_type = device_type
        # Empty regions count too: they may take part in a peer's move.
        self.resident = frozenset(ledger.regions) - ROLLOUT_REGIONS - self.movable
        self.phase: Phase | None = None
        self.metrics: dict[str, float] = {}
        self.moments: list[MeasuredSnapshot] | None = None
        self.began = time.perf_counter()

    def enter(self, phase: Phase) -> None:
        """Prepare the device for a phase, which lasts until the next one. A collective.

        Raises:
            DeviceMemoryError: A region does not fit.
            ResidueError: A region that had to leave is still there.
        """
        if phase is self.phase:
            TRACE.mark(phase.value)
            return
        TRACE.mark(f"swap to {phase.value}")
        logger.info("swap to %s begins", phase.value)
        if self.phase in CHANGED_BY:
            # With overlap, updated weights may still be on their way from other ranks.
            for region in CHANGED_BY[self.phase]:
                self.ledger.regions[region].complete()
        if self.phase is None:
            # First phase, or after a failed switch with incomplete moves.
            self.resident = frozenset(filter(self.ledger.is_complete, self.resident))
        self.phase = None
        for move in moves(self.resident, phase, self.movable):
            self._timed(move)
            self.resident = after(self.resident, [move])
            # A reshard needs more memory in between than at its start and end.
            whole = self.ledger.fullest if move.kind is MoveKind.RESHARD else None
            self._note(label_of(move), phase, whole)
        self.ledger.require_gone(*(self.ledger.regions.keys() - self.resident))
        # An update follows at once, or fails and ends the run.
        for region in CHANGED_BY.get(phase, ()):
            self.ledger.regions[region].changed()
        self.phase = phase
        TRACE.mark(phase.value)
        self._note(phase.value, phase)
        logger.info("phase %s begins", phase.value)

    def exchange(self, name: Region, region: DeviceRegion) -> None:
        """Put another region in the place of `name`; the present one leaves the device first.

        Raises like `enter`.
        """
        if self.ledger.regions[name] is region:
            return
        is_here = bool(self.ledger.regions[name].device_bytes())
        if is_here:
            self._timed(Move(MoveKind.OFFLOAD, name))
        self.ledger.replace(name, region)
        if is_here:
            self._timed(Move(MoveKind.ONLOAD, name))

    @contextmanager
    def sending(self, nbytes: int) -> Iterator[None]:
        """Prepare the device for sending weights over links, and count their messages.

        Raises like `enter`.
        """
        self.enter(Phase.SEND)
        with self.ledger.staging(nbytes):
            self._note(SENDING, Phase.SEND)
            yield

    def record(self, *, is_on: bool) -> None:
        """Start or stop recording the regions on the device at each moment."""
        self.moments = [] if is_on else None

    def flush_moments(self) -> list[MeasuredSnapshot]:
        """Return the moments recorded since the last call."""
        if self.moments is None:
            return []
        moments, self.moments = self.moments, []
        return moments

    def flush_metrics(self) -> dict[str, float]:
        """Return seconds and bytes of the switches since the last call, and the peak."""
        metrics, self.metrics = self.metrics, {}
        return metrics | {"memory/device_peak_bytes": float(self.ledger.flush_peak())}

    def _timed(self, move: Move) -> None:
        start = time.perf_counter_ns()
        self._carry_out(move)
        end, name = time.perf_counter_ns(), f"swap_{label_of(move).replace(' ', '_')}"
        TRACE.add(name, start, end)
        self._add(f"seconds/{name}", (end - start) / 1e9)

    def _carry_out(self, move: Move) -> None:
        match move.kind:
            case MoveKind.RESHARD:
                assert self.resharder is not None, "rollout is on this device"
                moved = self.resharder.bytes_moved()
                self.ledger.fullest = {}
                with self.ledger.staging(moved.pop("in_flight")):
                    self.resharder.reshard()
                for name, nbytes in moved.items():
                    self._add(f"bytes/reshard_{name}", nbytes)
            case MoveKind.ONLOAD:
                self._copied("to_device", move.region, self.ledger.onload(move.region))
            case MoveKind.OFFLOAD:
                # The engine frees its weights and its KV cache with the first of the two.
                for region in sorted(leaving(move), key=lambda region: region.value):
                    self._copied("to_host", region, self.ledger.offload(region))

    def _copied(self, way: str, region: Region, nbytes: int) -> None:
        if region not in DEAD_AFTER_USE:
            self._add(f"bytes/{way}_{region.value}", nbytes)

    def _note(self, label: str, phase: Phase, there: Mapping[Region, int] | None = None) -> None:
        if self.moments is None:
            return
        account = device_account(self.device_type)
        found, kept = there or self.ledger.region_bytes(), self.ledger.host_bytes()
        # The account excludes the engine, which the allocator counts even while asleep.
        engine_bytes = sum(found.get(name, 0) for name in ROLLOUT_REGIONS)
        self.moments.append(
            MeasuredSnapshot(
                label=label,
                phase=phase.value,
                seconds=time.perf_counter() - self.began,
                region_bytes={name.value: nbytes for name, nbytes in found.items()},
                host_bytes={name.value: nbytes for name, nbytes in kept.items()},
                allocated_bytes=None if account is None else account.peak_allocated + engine_bytes,
            )
        )

    def _add(self, name: str, value: float) -> None:
        self.metrics[name] = self.metrics.get(name, 0.0) + value
