"""Measure the memory schedule beside what other systems do with the same worker.

    python scripts/bench_memory.py [--only ppo] [--repeats 5] [--quick] [--json results.json]

grpo, ppo   steps of one worker with a model of 69 million weights in float32, rollout, reference
            and, for PPO, critic; under each of these managers of its device in turn:

schedule      this project
call by call  as verl does: for each call of a role load what it needs, run it, and copy everything
              back, changed or not. Weights that are trained have a place on the host for good,
              the reference and the optimizer get new memory each time. Gradients are dropped.
              For the rollout: load the weights, then the rollout weights, reshard, copy the weights
              back, then the KV cache
weights stay  as MindSpeed-RL does with its actor: the same, but the actor's weights wait on the
              device from the log-probs until the next rollout has read them
everything    call by call, with gradients copied too and new host memory for all of it: each a
              habit of an earlier version of one of them

Shown for each: seconds of the moves in a step, the reshard's among them (in the schedule weights
leave while it lasts), bytes copied in a step by region, the least that must be copied, the peak of
the device and the largest need of a phase, host memory. Then the bandwidth of a release and of a
return, beside plain copies of as many bytes: the copies alone, and with what the host takes to free
and to make the device's memory.

All ways drive the same worker, model and engine, and copy between the same storages; each takes
the device over empty, makes one step to settle, and one that counts. Medians. One process and one
core for each algorithm; seconds are the processor's, so other programs on the machine count little.
The host plays the device: its copies are memory to memory, and new memory is paid for page by page.
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
    """Measure in a process of its own, which Megatron and vLLM can live in."""
    # Of what Megatron would rather have and of what torch will call otherwise one day.
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
    """Print one row for each way; ours has to be as good as the plan says."""
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
    """Add up all moves of a step, the reshard too."""
    return float(sum(value for name, value in way.items() if name.startswith("seconds/")))


def copied_bytes(way: Result) -> float:
    """Add up what a step copies between device and host."""
    copied = ("bytes/to_host_", "bytes/to_device_")
    return float(sum(value for name, value in way.items() if name.startswith(copied)))


def show_regions(result: Result) -> None:
    """Print what each way copies of each region."""
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
    """Print bandwidths; `copy_` between two warm buffers is the measure."""
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
    """Measure the algorithms that are asked for and print each as it is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="steps of each way that count")
    parser.add_argument("--quick", action="store_true", help="a tiny model: seconds, and no claims")
    parser.add_argument(
        "--only", choices=ALGORITHMS, nargs="+", default=list(ALGORITHMS), help="what to run"
    )
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    arguments = parser.parse_args()
    environment = PLATFORMS["cpu"].worker_environment(workers=1, one_machine=True)
    # The host plays the device too: what leaves one side must not be the other's new memory, as a
    # heap that both share would have it. Large pages, for a device has no faults.
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
