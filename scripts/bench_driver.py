"""Measure the driver of whole runs over real Ray actors without models: 4 and 64 of them.

    python scripts/bench_driver.py [--workers 4 64] [--steps 20] [--prompts N] [--json]

The product's driver, trainer, reward processes and data path run as always; the workers are those
of fake_workers.py, with answers of the right shapes. A step has a prompt for each worker, or
`--prompts`, each answered 8 times. Of each number of workers, per step after the second:

driver_cpu_seconds   CPU seconds of the driver's process, with Ray's threads in it
ray_cpu_seconds      CPU seconds of Ray's own processes
calls                calls of a method of an actor
objects              arguments that are put into Ray's store, once for all who share them
driver_mib           resident memory of the driver at the end, above that before the workers start
growth_mib           part of it that is new since the second step

`growth` is a figure of the last number of workers over that of the first, divided by the ratio of
the numbers: at most 1 if it is at most linear. Each number of workers is a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from io import StringIO
from pathlib import Path
from typing import Any

import psutil

from mindrl.cluster.prefork import PreforkServer
from mindrl.cluster.ray_cluster import RayCluster
from mindrl.cluster.worker_group import Crew, WorkerCall, WorkerGroup
from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.data.run_data import read_data
from mindrl.launch.parts import Raters, loop_of, worker_handle
from mindrl.observability.console import StepConsole
from mindrl.observability.metrics import Metrics
from mindrl.observability.trackers import JsonlTracker
from mindrl.platform.device import PLATFORMS, Platform
from mindrl.preflight.checks import check
from mindrl.rewards.scorer import RewardScorer
from mindrl.tiny.chat_model import build_model, build_tokenizer
from mindrl.tiny.questions import write_questions
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary

SAMPLES = 8
"""Responses to each prompt."""
SKIPPED = 2
"""Steps before the first that counts."""
Figures = dict[str, float]


class ManySlots(Platform):
    """The CPU, with a slot for each worker of a run: these workers compute next to nothing."""

    def local_devices(self) -> int:
        """Return more than any run asks for."""
        return 1 << 16


SLOTS = ManySlots(**{each.name: getattr(PLATFORMS["cpu"], each.name) for each in fields(Platform)})


class CountingGroup(WorkerGroup):
    """Counts what the driver sends."""

    sent = stored = 0

    def begin(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
        *,
        first: int = 0,
    ) -> WorkerCall:
        """Count the calls, and the arguments that are stored for them."""
        self.sent += len(arguments)
        self.stored += len({*map(id, arguments)})
        return super().begin(method, arguments, answering, first=first)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What the driver has spent so far."""

    driver_cpu_seconds: float
    ray_cpu_seconds: float
    calls: int
    objects: int
    wall_seconds: float
    mib: float


class Meter:
    """Notes what the driver has spent, step by step; a tracker of the run."""

    def __init__(self, group: CountingGroup) -> None:
        self.group = group
        self.steps: list[Spent] = []

    def log(self, step: int, metrics: Metrics) -> None:
        """Note a step."""
        del step, metrics
        self.steps.append(
            Spent(
                driver_cpu_seconds=time.process_time(),
                ray_cpu_seconds=sum(map(cpu_seconds, self.group.calls.processes)),
                calls=self.group.sent,
                objects=self.group.stored,
                wall_seconds=time.monotonic(),
                mib=resident_mib(),
            )
        )

    def close(self) -> None:
        """Do nothing."""


def cpu_seconds(watched: Any) -> float:
    """Return the CPU seconds of one of Ray's processes, without its children."""
    with suppress(psutil.NoSuchProcess):
        times = watched.process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def resident_mib() -> float:
    """Return the resident memory of this process."""
    return float(psutil.Process().memory_info().rss) / 2**20


def run_config(folder: Path, workers: int, steps: int, prompts: int) -> RunConfig:
    """Return the configuration of a run of the quickstart's tiny model, untrained."""
    model, data = folder / "model", folder / "data"
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(model)
    build_model(tokenizer, seed=1).save_pretrained(model)
    data.mkdir()
    for _ in write_questions(data, seed=1):
        pass
    return load_run_config(
        {
            "megatron_training": {
                "train_iters": steps,
                "global_batch_size": prompts,
                "seq_length": 64,
                "data_path": str(data / "train.jsonl"),
                "bf16": False,
            },
            "actor_config": {"load": str(model), "backend": "archon", "micro_batch_size": SAMPLES},
            "rl_config": {
                "device": "cpu",
                "actor_resource": {"num_npus": workers, "npus_per_node": workers},
                "n_samples_per_prompt": SAMPLES,
                "mini_batch_size": prompts,
                "max_prompt_length": 16,
                "memory_timeline_steps": 0,
                "worker_start_timeout_seconds": 3600,
            },
            "generate_config": {
                "dtype": "float32",
                "max_model_len": 64,
                "kv_cache_mib": 16,
                "sampling_config": {"max_tokens": 40},
            },
            "profiler_config": {"trace_steps": 0},
        }
    )


@contextmanager
def cluster_of(workers: int) -> Iterator[RayCluster]:
    """Yield a cluster of this machine alone, whose workers are forked with all libraries."""
    environment = SLOTS.worker_environment(workers=workers, one_machine=True)
    with PreforkServer("cpu", ["fake_workers"], environment, megatron=False) as prefork:
        cluster = RayCluster(
            SLOTS,
            devices=workers,
            devices_per_node=workers,
            timeout_seconds=3600,
            prefork=prefork,
        )
        try:
            cluster.start()
            prefork.wait()
            yield cluster
        finally:
            cluster.stop()


def measured(cluster: RayCluster, workers: int, steps: int, prompts: int | None) -> Figures:
    """Run all steps on new workers of a cluster, and return the figures of a step."""
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        folder = RunFolder(root=Path(root) / "run")
        folder.logs.mkdir(parents=True)
        config = run_config(Path(root), workers, steps, prompts or workers)
        plan, data = check(config, SLOTS), read_data(config)
        before = resident_mib()
        crew = Crew(factory="fake_workers:build_worker", nodes=[0] * workers)
        group = CountingGroup(cluster, plan, folder.logs, crew, lambda _: None)
        stack.callback(group.stop)
        scorer = stack.enter_context(RewardScorer(config.rl_config, config.reward_weights))
        meter, metrics = Meter(group), JsonlTracker(folder.metrics)
        console = StepConsole(steps, StringIO())
        summary = RunSummary(exports={"actor": folder.root / "model"})
        run_log = RunLog(folder, summary, console, [metrics, meter])
        loop_of(plan, data, worker_handle(group, plan), Raters(scorer, None), run_log).run()
        run_log.close()
    return per_step(meter.steps, before)


def per_step(steps: Sequence[Spent], before_mib: float) -> Figures:
    """Return the mean of the steps that count."""
    first, last = steps[SKIPPED - 1], steps[-1]
    count = len(steps) - SKIPPED
    names = ("driver_cpu_seconds", "ray_cpu_seconds", "calls", "objects", "wall_seconds")
    figures = {name: (getattr(last, name) - getattr(first, name)) / count for name in names}
    return figures | {
        "driver_mib": last.mib - before_mib,
        "growth_mib": last.mib - first.mib,
    }


def growth(fewest: Figures, most: Figures, ratio: float) -> Figures:
    """Return how much more than in proportion each figure has grown: at most 1 if linear."""
    names = ("driver_cpu_seconds", "ray_cpu_seconds", "calls", "objects", "driver_mib")
    return {name: most[name] / fewest[name] / ratio for name in names if fewest[name]}


def apart(workers: int, arguments: argparse.Namespace) -> Figures:
    """Measure a number of workers in a process of its own.

    Raises:
        SystemExit: It failed.
    """
    command = [sys.executable, __file__, "--part", str(workers), "--steps", str(arguments.steps)]
    if arguments.prompts:
        command += ["--prompts", str(arguments.prompts)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the run of {workers} workers ended with {done.returncode}")
    # Ray writes warnings about many workers to the same output.
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found: Figures = json.loads(lines[-1])
    return found


def show(found: dict[int, Figures], grown: Figures) -> None:
    """Print a table."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table("a step", *(f"{workers} workers" for workers in found), "growth")
    for name in next(iter(found.values())):
        row = (f"{each[name]:,.4g}" for each in found.values())
        table.add_row(name, *row, f"{grown[name]:.2f}" if name in grown else "")
    Console(width=100).print(table)


def main(measure: Callable[[int, argparse.Namespace], Figures] = apart) -> int:
    """Measure each number of workers, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--steps", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--prompts", type=int, help="of a step; default: one for each worker")
    parser.add_argument("--part", type=int, help="measure only this number of workers")
    parser.add_argument("--json", action="store_true", help="print one flat object")
    arguments = parser.parse_args()
    if arguments.part:
        with cluster_of(arguments.part) as cluster:
            figures = measured(cluster, arguments.part, arguments.steps, arguments.prompts)
        print(json.dumps(figures), flush=True)
        return 0
    found = {workers: measure(workers, arguments) for workers in arguments.workers}
    fewest, most = min(found), max(found)
    grown = growth(found[fewest], found[most], most / fewest)
    if arguments.json:
        flat = {f"{name}_{n}": value for n, each in found.items() for name, value in each.items()}
        print(json.dumps(flat | {f"{name}_growth": value for name, value in grown.items()}))
    else:
        show(found, grown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
