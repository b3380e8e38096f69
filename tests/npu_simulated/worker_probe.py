"""Functions that tests of whole workers call in the processes of simulated devices."""

from dataclasses import dataclass, field

import torch

from mindrl.errors import DeviceMemoryError
from mindrl.launch.worker import build_worker
from mindrl.memory.schedule import Phase
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.platform.device import PLATFORMS
from mindrl.platform.device_memory import free_bytes, give_back_unused
from mindrl.preflight.run_shardings import RunPlan
from mindrl.workers.actor_hybrid_worker import ActorHybridWorker

PAGE = 2 << 20


@dataclass(kw_only=True)
class Crowded:
    """What became of a worker whose device others fill up."""

    moments: list[MeasuredSnapshot]
    """Of one round of phases."""
    peak: int = 0
    """Bytes of the device that it takes during rollout, at the most."""
    need: int = 0
    """What was planned for then."""
    said: list[str] = field(default_factory=list)
    """In the round behind: with room for that, with a page less, and with room for it again."""


def crowded(plan: RunPlan) -> Crowded:
    """Enter the phases of a step, round after round, on a device with room for the peak, or less.

    Without their calls, of whose activations the plan knows nothing.
    """
    before = _free()
    worker = build_worker(plan, PLATFORMS["npu"])
    _round(worker)
    worker.record_memory(is_on=True)
    _round(worker)
    found = Crowded(moments=worker.flush_moments())
    worker.sharding_manager.enter(Phase.ROLLOUT)
    room = _free()
    found.peak, found.need = before - room, worker.memory_plan().need_bytes(0)
    for taken in (room, room + PAGE, room):
        worker.sharding_manager.enter(Phase.TRAIN)
        give_back_unused("npu")
        # torch_npu adds 32 bytes, and takes whole pages.
        others = torch.empty(taken - 512, dtype=torch.uint8, device="npu")
        try:
            _round(worker)
        except DeviceMemoryError as error:
            found.said.append(str(error))
        else:
            found.said.append("")
        del others
        give_back_unused("npu")
    return found


def refusal(plan: RunPlan) -> str:
    """Return why a device is too small for a run, before anything lies on it."""
    try:
        build_worker(plan, PLATFORMS["npu"])
    except DeviceMemoryError as error:
        return str(error)
    return ""


def _round(worker: ActorHybridWorker) -> None:
    """Go through a step, from the rollout to the update."""
    for phase in worker.memory_plan().phases:
        worker.sharding_manager.enter(phase)


def _free() -> int:
    torch.npu.synchronize()
    give_back_unused("npu")
    free = free_bytes("npu")
    assert free is not None
    return free
