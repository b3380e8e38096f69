"""What the tests of the memory schedule call in prepared processes; see forked_workers.run."""

from contextlib import ExitStack
from unittest.mock import patch

from mindrl.errors import DeviceMemoryError
from mindrl.launch.worker import build_worker
from mindrl.memory.schedule import step_phases
from mindrl.platform.device import PLATFORMS
from mindrl.platform.host_memory import process_memory
from mindrl.preflight import run_shardings
from mindrl.preflight.run_shardings import RunPlan
from mindrl.resharding import plan as reshard
from mindrl.training import planning


def refusal(plan: RunPlan) -> str:
    """Build a worker that does not fit its device; returns what it says."""
    try:
        build_worker(plan, PLATFORMS["cpu"])
    except DeviceMemoryError as error:
        return str(error)
    raise AssertionError("the worker was built")


PLANNERS = (
    (run_shardings, "planned_description"),
    (run_shardings, "unordered_plan"),
    (run_shardings, "choose_orders"),
    (planning, "megatron_sharding"),
    (run_shardings, "rollout_sharding"),
    (reshard, "cut_into_slices"),
    (reshard, "choose_senders"),
)


def planned(plan: RunPlan, folder: str) -> tuple[list[int], list[int]]:
    """Build a worker, then export twice; returns how often each planner had run by then."""
    with ExitStack() as stack:
        counted = [
            stack.enter_context(patch.object(module, name, wraps=getattr(module, name)))
            for module, name in PLANNERS
        ]
        worker = build_worker(plan, PLATFORMS["cpu"])
        started = [each.call_count for each in counted]
        for _ in range(2):
            worker.export(folder, {})
        return started, [each.call_count for each in counted]


def swaps(plan: RunPlan, rounds: int) -> list[dict[str, int]]:
    """Enter the phases of a step in turn, round and round; returns what is taken behind each round.

    Without their calls, whose activations would hide what a switch leaves behind.
    """
    worker = build_worker(plan, PLATFORMS["cpu"])
    taken = []
    for _ in range(rounds):
        for phase in step_phases(plan.config.roles):
            worker.sharding_manager.enter(phase)
        taken.append(
            {
                "device": sum(worker.device.ledger.region_bytes().values()),
                "host arena": worker.device.arena.nbytes,
                "places in the arena": worker.device.arena.used,
                "resident": process_memory().rss_bytes,
            }
        )
    return taken
