"""What the tests of the memory schedule call in prepared processes; see forked_workers.run."""

from unittest.mock import patch

from mindrl.config.run import RunConfig
from mindrl.errors import DeviceMemoryError
from mindrl.launch.worker import build_worker
from mindrl.memory.schedule import step_phases
from mindrl.observability.memory import process_memory
from mindrl.platform.device import PLATFORMS
from mindrl.preflight import run_layouts as layouts
from mindrl.preflight.memory_regions import run_roles
from mindrl.resharding import plan


def refusal(config: RunConfig) -> str:
    """Build a worker that does not fit its device; returns what it says."""
    try:
        build_worker(config, PLATFORMS["cpu"])
    except DeviceMemoryError as error:
        return str(error)
    raise AssertionError("the worker was built")


def planned(config: RunConfig, folder: str) -> tuple[list[int], list[int]]:
    """Build a worker, then export twice; returns how often each planner had run by then."""
    with (
        patch.object(layouts, "choose_orders", wraps=layouts.choose_orders) as orders,
        patch.object(plan, "cut_into_cells", wraps=plan.cut_into_cells) as cells,
        patch.object(plan, "choose_senders", wraps=plan.choose_senders) as senders,
    ):
        worker = build_worker(config, PLATFORMS["cpu"])
        started = [each.call_count for each in (orders, cells, senders)]
        for _ in range(2):
            worker.export(folder, {})
        return started, [each.call_count for each in (orders, cells, senders)]


def swaps(config: RunConfig, rounds: int) -> list[dict[str, int]]:
    """Enter the phases of a step in turn, round and round; returns what is taken behind each round.

    Without their calls, whose activations would hide what a switch leaves behind.
    """
    worker = build_worker(config, PLATFORMS["cpu"])
    taken = []
    for _ in range(rounds):
        for phase in step_phases(run_roles(config)):
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
