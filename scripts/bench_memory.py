"""Compare the memory schedule with the methods of other systems on the same worker.

    python scripts/bench_memory.py [--only ppo] [--repeats 5] [--quick] [--json results.json]

grpo, ppo   steps of one worker with a model of 69 million weights in float32, rollout, reference
            and, for PPO, critic; with each of these device managers in turn:

schedule      this project
call by call  as in verl: for each call of a role load the regions that it needs, run it, and copy
              all of them back, changed or not. Trained weights have a permanent place on the host;
              the reference and the optimizer get new memory each time. Gradients are dropped.
              For the rollout: load the weights, then the rollout weights, reshard, copy the weights
              back, then allocate the KV cache
weights stay  as in MindSpeed-RL for its actor: the same, but the actor's weights stay on the device
              from the log-probs until the next rollout has read them
everything    call by call, with gradients copied too and new host memory for all regions, as in
              earlier versions of these systems

Prints for each manager: seconds of the moves in a step, including the reshard (during which the
schedule releases weights), bytes copied per step and region, the minimum that must be copied, the
peak of the device, the largest need of a phase, and host memory. Then the bandwidth of a release
and of a return, compared with plain copies of the same bytes: without and with the time to free and
allocate the device's memory.

All managers use the same worker, model and engine, and copy between the same storages. Each starts
with an empty device and makes one warm-up step and one measured step. Values are medians. One
process and one core per algorithm; times are CPU times, so other programs have little influence.
The host stands in for the device: copies are memory to memory, and new memory is mapped page by
page.
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mindrl.memory.schedule import Region
from mindrl.platform.device import PLATFORMS, prepare_process

Result = dict[str, Any]

ALGORITHMS = ("grpo", "ppo")
CONSOLE = Console(width=110, highlight=False)
MIB = 1 << 20


def run(algorithm: str, *, quick: bool, repeats: int) -> Result:
    """Measure in a separate process, prepared for Megatron and vLLM."""
    # Megatron's preferences, and deprecations of torch.
    warnings.simplefilter("ignore")
    prepare_process(PLATFORMS["cpu"])
    runs = import_module("memory_runs")
    runs.join()
    with tempfile.TemporaryDirectory() as folder:
        return runs.measure(algorithm, folder, quick=quick, repeats=repeats)  # type: ignore[no-any-return]


def show(algorithm: str, result: Result) -> None:
    """Print three tables."""
    show_ways(algorithm, result)
    show_regions(result)
    show_copies(result)


def show_ways(algorithm: str, result: Result) -> None:
    """Print one row per manager; the schedule must reach its plan."""
    least, need = sum(result["least_bytes"].values()), result["need_bytes"]
    ours = result["ways"]["schedule"]
    table = Table(
        title=f"{algorithm}: a step; all regions {result['all_bytes'] / MIB:.0f} MiB, largest "
        f"need of a phase {need / MIB:.0f}, least to copy {least / MIB:.0f}"
    )
    table.add_column("")
    for column in ("moves", "of ours", "reshard", "copied", "of least", "peak", "of need", "host"):
        table.add_column(column, justify="right")
    for name, way in result["ways"].items():
        table.add_row(
            name,
            f"{swap_seconds(way):.3f} s",
            f"{swap_seconds(way) / swap_seconds(ours):.2f} x",
            f"{way['seconds/reshard']:.3f} s",
            f"{copied_bytes(way) / MIB:.0f} MiB",
            f"{copied_bytes(way) / least:.2f}",
            f"{way['memory/device_peak_bytes'] / MIB:.0f} MiB",
            f"{way['memory/device_peak_bytes'] / need:.2f}",
            f"{way['host'] / MIB:.0f} MiB",
        )
    CONSOLE.print(table)
    assert copied_bytes(ours) == least, (copied_bytes(ours), least)
    assert ours["memory/device_peak_bytes"] <= 1.05 * need, (ours, need)


def swap_seconds(way: Result) -> float:
    """Return the seconds of all moves of a step, including the reshard."""
    return float(sum(value for name, value in way.items() if name.startswith("seconds/")))


def copied_bytes(way: Result) -> float:
    """Return the bytes that a step copies between device and host."""
    copied = ("bytes/to_host_", "bytes/to_device_")
    return float(sum(value for name, value in way.items() if name.startswith(copied)))


def show_regions(result: Result) -> None:
    """Print the bytes that each manager copies, by region."""
    ways = result["ways"]
    table = Table(title="MiB copied in a step, to the host / to the device")
    table.add_column("")
    for name in ways:
        table.add_column(name, justify="right")
    for region in Region:
        cells = [
            "{:.0f} / {:.0f}".format(
                *(way.get(f"bytes/{to}_{region.value}", 0) / MIB for to in ("to_host", "to_device"))
            )
            for way in ways.values()
        ]
        if any(cell != "0 / 0" for cell in cells):
            table.add_row(region.value, *cells)
    CONSOLE.print(table)


def show_copies(result: Result) -> None:
    """Print bandwidths, also relative to `copy_` between two warm buffers."""
    table = Table(title="GB/s (over copy_ between warm buffers)")
    names = next(iter(result["copies"].values()))
    table.add_column("")
    for region in result["copies"]:
        table.add_column(region, justify="right")
    for name in names:
        cells = [
            f"{rates[name] / 1e9:.2f} ({rates[name] / rates['copy_']:.2f})"
            for rates in result["copies"].values()
        ]
        table.add_row(name, *cells)
    CONSOLE.print(table)


def main() -> int:
    """Measure the chosen algorithms, and print each result when it is finished."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="measured steps per manager")
    parser.add_argument(
        "--quick", action="store_true", help="use a tiny model: fast, invalid figures"
    )
    parser.add_argument(
        "--only", choices=ALGORITHMS, nargs="+", default=list(ALGORITHMS), help="algorithms to run"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    environment = PLATFORMS["cpu"].worker_environment(workers=1, one_machine=True)
    # The host stands in for the device: unlike in a shared heap, one side must not reuse the freed
    # memory of the other. Large pages, because a device has no page faults.
    heap = {"MALLOC_MMAP_THRESHOLD_": "65536", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    os.environ.update(environment | heap | {"OMP_NUM_THREADS": "1"})
    results = {}
    for algorithm in arguments.only:
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
            work = pool.submit(run, algorithm, quick=arguments.quick, repeats=arguments.repeats)
            results[algorithm] = work.result()
        show(algorithm, results[algorithm])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
