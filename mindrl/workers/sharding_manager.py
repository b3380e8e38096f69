"""Who owns the device at any moment: the phases of colocation and the ways between them."""

import time
from collections.abc import Callable
from enum import Enum
from typing import Protocol, TypeVar

from mindrl.allocation.regions import TrainRegion
from mindrl.errors import PhaseError

Result = TypeVar("Result")


class Phase(Enum):
    """What the device is used for."""

    FORWARD = "forward"
    """Training weights are on the device: log-probs."""
    TRAIN = "train"
    """Training weights, gradients and optimizer state are on the device: updates."""
    ROLLOUT = "rollout"
    """Rollout weights and the KV cache are on the device: generation."""


class TrainSide(Protocol):
    """The training state, as the schedule sees it."""

    def offload(self, region: TrainRegion) -> int:
        """Take a region off the device; returns the bytes copied."""

    def onload(self, region: TrainRegion) -> int:
        """Bring a region back to the device; returns the bytes copied."""


class RolloutSide(Protocol):
    """The rollout engine, as the schedule sees it."""

    def sleep(self) -> None:
        """Release the weights and the KV cache."""

    def allocate_weights(self) -> None:
        """Allocate the weights again."""

    def allocate_kv_cache(self) -> None:
        """Allocate the KV cache again, empty."""


class Resharder(Protocol):
    """Moves the weights from the training side to the rollout side."""

    def reshard(self) -> None:
        """Fill the rollout weights. A collective over all ranks."""

    def bytes_moved(self) -> dict[str, int]:
        """Say what the last pass sent, received and copied."""


_LEGAL = {
    Phase.TRAIN: (Phase.FORWARD, Phase.ROLLOUT),
    Phase.FORWARD: (Phase.TRAIN, Phase.ROLLOUT),
    Phase.ROLLOUT: (Phase.FORWARD,),
}


class ShardingManager:
    """Switches one device between its phases, releasing before it allocates."""

    def __init__(
        self,
        train: TrainSide,
        rollout: RolloutSide,
        resharder: Resharder,
        *,
        offloaded: frozenset[TrainRegion],
    ) -> None:
        """Take over a device that trains while the rollout engine sleeps.

        Args:
            train: The training state, all of it on the device.
            rollout: The rollout engine, asleep.
            resharder: Moves the weights from one to the other.
            offloaded: Regions that leave the device while they are not used.
        """
        self.train = train
        self.rollout = rollout
        self.resharder = resharder
        self.offloaded = offloaded
        self.phase = Phase.TRAIN
        self.metrics: dict[str, float] = {}

    def enter(self, phase: Phase) -> None:
        """Make the device ready for a phase. A collective over all ranks.

        Raises:
            PhaseError: There is no direct way from the present phase.
        """
        if phase not in _LEGAL[self.phase]:
            ways = ", ".join(way.value for way in _LEGAL[self.phase])
            raise PhaseError(
                f"the device cannot go from {self.phase.value} to {phase.value}; "
                f"from {self.phase.value} it can go to: {ways}"
            )
        match self.phase, phase:
            case Phase.TRAIN, Phase.FORWARD:
                self._leave_train()
            case Phase.FORWARD, Phase.TRAIN:
                self._onload(TrainRegion.GRADIENTS)
                self._onload(TrainRegion.OPTIMIZER)
            case Phase.TRAIN, Phase.ROLLOUT:
                self._leave_train()
                self._enter_rollout()
            case Phase.FORWARD, Phase.ROLLOUT:
                self._enter_rollout()
            case Phase.ROLLOUT, Phase.FORWARD:
                self._timed("release_rollout", self.rollout.sleep)
                self._onload(TrainRegion.PARAMETERS)
        self.phase = phase

    def require(self, *phases: Phase) -> None:
        """Refuse a call that the present phase does not allow.

        Raises:
            PhaseError: The device is in another phase.
        """
        if self.phase not in phases:
            wanted = " or ".join(phase.value for phase in phases)
            raise PhaseError(f"this needs phase {wanted}, the device is in {self.phase.value}")

    def flush_metrics(self) -> dict[str, float]:
        """Return seconds and bytes of the switches since the last call."""
        metrics, self.metrics = self.metrics, {}
        return metrics

    def _leave_train(self) -> None:
        self._offload(TrainRegion.OPTIMIZER)
        self._offload(TrainRegion.GRADIENTS)

    def _enter_rollout(self) -> None:
        self._timed("allocate_rollout", self.rollout.allocate_weights)
        self._timed("reshard", self.resharder.reshard)
        for name, moved in self.resharder.bytes_moved().items():
            self._add(f"bytes/reshard_{name}", moved)
        self._offload(TrainRegion.PARAMETERS)
        self._timed("allocate_kv_cache", self.rollout.allocate_kv_cache)

    def _offload(self, region: TrainRegion) -> None:
        if region in self.offloaded:
            name = f"offload_{region.value}"
            self._add(f"bytes/{name}", self._timed(name, lambda: self.train.offload(region)))

    def _onload(self, region: TrainRegion) -> None:
        if region in self.offloaded:
            name = f"onload_{region.value}"
            self._add(f"bytes/{name}", self._timed(name, lambda: self.train.onload(region)))

    def _timed(self, name: str, action: Callable[[], Result]) -> Result:
        start = time.perf_counter()
        result = action()
        self._add(f"seconds/swap_{name}", time.perf_counter() - start)
        return result

    def _add(self, name: str, value: float) -> None:
        self.metrics[name] = self.metrics.get(name, 0.0) + value
