"""Measure what grows with the number of ranks, without their devices: 671B on 256 to 4,096 ranks.

    python scripts/bench_scale.py [--ranks 1024] [--json]

One process executes the product's code for the ranks of a DeepSeek-V3 that is trained by
`megatron:d32p8t4e32` and answers in `vllm:d32t32e32`, with `d` for the number of ranks:

plan     what one rank does: plan the reshard and take its own part (CPU seconds, peak of memory)
peers    ranks that a rank sends to or receives from; largest batch of operations that it starts
wait     the driver waits for a call of as many Ray actors, whose answers are there
agree    all ranks compare their plans, through one store
export   bytes of a model folder that a rank and a node of eight ranks write
metrics  bytes of a step's metrics in metrics.jsonl that workers measure
batches  a step of 1,024 answers, or of `--prompts` 16 times each, of up to `--longest` tokens:
         bytes that the driver pickles, its seconds, and its memory

Each part is a process of its own. The model is never loaded; messages have the shapes and dtypes of
the weights on torch's `meta` device. With `--json` prints one flat object.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scale_batches
from scale_batches import measured_batches, peak_mib

from mindrl.allocation.meaning import parse_rollout, parse_training
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.placement import whole
from mindrl.models.sharding import Sharding
from mindrl.platform.garbage import planning
from mindrl.preflight.shipped import families_without_a_run, planned_description
from mindrl.resharding.plan import ReshardPlan, Topology, plan_reshard
from mindrl.rollout.planning import rollout_sharding
from mindrl.training.planning import Storage, planning_of

Figures = dict[str, float]

MODEL = Path(__file__).parents[1] / "configs/models/DeepSeek-V3/config.json"
STAGES = (8, 8, 8, 8, 8, 7, 7, 7)
"""Layers of the pipeline stages: 61 in total."""
RANKS_OF_A_REPLICA, RANKS_OF_A_NODE = 32, 8
ASKED = 32
"""Ranks, evenly spaced, whose batches of operations are laid out."""


def sides(ranks: int) -> tuple[Sharding, Sharding]:
    """Return both sides of the reshard."""
    model, training, rollout = _model_and_layouts(ranks)
    held = planning_of("megatron").sharding(model, training, Storage(dtype="bfloat16"))
    return held, rollout_sharding(model, rollout, dtype="bfloat16")


def _model_and_layouts(ranks: int) -> tuple[ModelDescription, TrainLayout, RolloutLayout]:
    if ranks % RANKS_OF_A_REPLICA:
        raise SystemExit(
            f"--ranks {ranks}: needs a multiple of {RANKS_OF_A_REPLICA}; nearest: 1024"
        )
    replicas = ranks // RANKS_OF_A_REPLICA
    training = parse_training(f"megatron:d{replicas}p8t4e{min(32, 4 * replicas)}")
    return (
        planned_description(str(MODEL), families_without_a_run("megatron")),
        replace(training, layers_per_chunk=STAGES),
        parse_rollout(f"vllm:d{replicas}t32e32"),
    )


def planned(ranks: int) -> ReshardPlan:
    """Plan the reshard, on nodes of eight ranks."""
    source, target = sides(ranks)
    return plan_reshard(source, target, Topology(ranks_per_node=RANKS_OF_A_NODE))


@planning()
def measure_plan(ranks: int) -> Figures:
    """Plan as one rank does, then look at what all ranks would do."""
    began = time.process_time()
    plan = planned(ranks)
    # As `Reshard` and `Reshard.run` ask for them.
    own, _ = plan.of_rank(ranks - 1), plan.digest
    seconds, peak = time.process_time() - began, peak_mib()
    linked = plan.pair_bytes + plan.pair_bytes.T > 0
    return {
        "peers_mean": float(linked.sum(axis=1).mean()),
        "peers_max": int(linked.sum(axis=1).max()),
        "largest_batch": largest_batch(plan, range(0, ranks, max(1, ranks // ASKED))),
        "rounds": len(own),
        "received_over_bound": float(plan.received.sum() / plan.lower_bound.sum()),
        "busiest_sender_gb": float(plan.sent.max() / 1e9),
        "plan_cpu_seconds": seconds,
        "plan_peak_mib": peak,
    }


def largest_batch(plan: ReshardPlan, ranks: Sequence[int]) -> int:
    """Return the most messages that one of these ranks starts at once."""
    import torch  # noqa: PLC0415 - a plan needs none, and its memory is measured

    from mindrl.resharding.exchange import Staging, messages_of  # noqa: PLC0415
    from mindrl.resharding.plan import Transfer  # noqa: PLC0415
    from mindrl.resharding.reshard import Reshard  # noqa: PLC0415

    device = torch.device("meta")

    def batches(rank: int) -> Iterator[int]:
        channel: Any = SimpleNamespace(group=SimpleNamespace(rank=lambda: rank))
        part = Reshard(plan, channel, (), ())

        def weights(transfer: Transfer) -> torch.Tensor:
            dtype = part.wire_dtype(transfer.slice.tensor)
            shape = [stop - start for start, stop in transfer.slice.box]
            return torch.empty(shape, dtype=dtype, device=device)

        for step in part.rounds:
            yield sum(
                len(messages_of(way, part.wire_dtype, weights, Staging(device)))
                for way in (step.sends, step.receives)
            )

    return max(max(batches(rank)) for rank in ranks)


def measure_wait(ranks: int) -> Figures:
    """Wait as the driver does for a call whose answers are in Ray's store."""
    import ray  # noqa: PLC0415 - each part imports its own libraries

    from mindrl.cluster.call_limits import Limit  # noqa: PLC0415
    from mindrl.cluster.ray_calls import RayCalls  # noqa: PLC0415
    from mindrl.cluster.worker_group import WorkerGroup  # noqa: PLC0415

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    group = object.__new__(WorkerGroup)
    group.calls, group.watch, group.show = RayCalls(600), None, None
    group.meanwhile = lambda: None
    references = {rank: ray.put(rank) for rank in range(ranks)}
    began = time.process_time()
    answers = group.answers(references, Limit(seconds=600, description="600 s"), "update")
    seconds = time.process_time() - began
    ray.shutdown()
    assert answers == [*range(ranks)], "in the order of the ranks"
    return {"wait_cpu_seconds": seconds}


def measure_agreement(ranks: int) -> Figures:
    """Let all ranks compare their plans through a store that counts the keys asked for."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415
    from itertools import chain  # noqa: PLC0415

    import torch  # noqa: PLC0415
    from torch._C._distributed_c10d import HashStore  # noqa: PLC0415

    from mindrl.resharding.exchange import Channel  # noqa: PLC0415

    shared = HashStore()
    asked: list[list[int]] = [[] for _ in range(ranks)]

    class Counting:
        """A rank's view of the store."""

        def __init__(self, rank: int) -> None:
            self.set, self.wait, self.check = shared.set, shared.wait, shared.check
            self.asked = asked[rank]

        def get(self, key: str) -> bytes:
            self.asked.append(1)
            found: bytes = shared.get(key)
            return found

        def multi_get(self, keys: Sequence[str]) -> list[bytes]:
            self.asked.append(len(keys))
            return [shared.get(key) for key in keys]

    def agree(rank: int) -> None:
        group: Any = SimpleNamespace(rank=lambda: rank, size=lambda: ranks)
        store: Any = Counting(rank)
        Channel(group, store, torch.device("cpu"), 600.0).agree(b"sixteen bytes xx")

    began = time.process_time()
    with ThreadPoolExecutor(max_workers=ranks) as pool:
        for done in [pool.submit(agree, rank) for rank in range(ranks)]:
            done.result()
    return {
        "store_gets": sum(chain.from_iterable(asked)),
        "agree_cpu_seconds": time.process_time() - began,
    }


def measure_metrics(ranks: int) -> Figures:
    """Join what the workers measured in a step, as the driver writes it."""
    from mindrl.observability.metrics import joined_metrics  # noqa: PLC0415
    from mindrl.observability.output_files import json_text  # noqa: PLC0415

    workers = [
        {
            "seconds/generate": 100 + rank / 7,
            "bytes/reshard_received": 4e9 + rank,
            "memory/device_peak_bytes": 6e10 + rank,
            "memory/host_arena_bytes": 1e11 + rank,
            "memory/rss_bytes": 2e11 + rank,
            "memory/peak_rss_bytes": 2e11 + rank,
        }
        for rank in range(ranks)
    ]
    began = time.process_time()
    line = json_text(joined_metrics(workers, []))
    return {
        "metrics_json_bytes": len(line),
        "metrics_cpu_seconds": time.process_time() - began,
    }


@planning()
def measure_export(ranks: int) -> Figures:
    """Plan an export of the weights, whose files are written by their owners."""
    from mindrl.checkpoint.export import file_tables  # noqa: PLC0415
    from mindrl.workers.weight_export import file_owners  # noqa: PLC0415

    model = _model_and_layouts(ranks)[0]
    table = {name: whole(name, shape) for name, shape in logical_shapes(model).items()}
    tables = file_tables(table, "bfloat16")
    owners = file_owners([*tables], range(ranks), ranks)
    target = Sharding(shards=tables, held_by=owners, dtype="bfloat16")
    began = time.process_time()
    plan = plan_reshard(sides(ranks)[0], target, Topology(ranks_per_node=RANKS_OF_A_NODE))
    plan.of_rank(0)
    seconds, written = time.process_time() - began, np.array(target.held_bytes())
    return {
        "export_files": len(tables),
        "export_rank_gb": float(written.max() / 1e9),
        "export_node_gb": float(written.reshape(-1, RANKS_OF_A_NODE).sum(axis=1).max() / 1e9),
        "export_received_gb": float(plan.received.sum() / 1e9),
        "export_plan_cpu_seconds": seconds,
    }


PARTS: dict[str, Callable[[int], Figures]] = {
    "plan": measure_plan,
    "wait": measure_wait,
    "agree": measure_agreement,
    "export": measure_export,
    "metrics": measure_metrics,
    "batches": lambda ranks: measured_batches(ranks // RANKS_OF_A_REPLICA),
}


def measured(part: str, arguments: argparse.Namespace) -> Figures:
    """Measure a part in a process of its own.

    Raises:
        SystemExit: It failed.
    """
    command = [sys.executable, __file__, "--part", part]
    for name in ("ranks", "prompts", "longest"):
        command += [f"--{name}", str(getattr(arguments, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the part {part} ended with {done.returncode}")
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def show(figures: Figures) -> None:
    """Print a table."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table("figure", title=f"671B on {figures['ranks']:,} ranks")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else f"{value:,.4g}")
    Console(width=100).print(table)


def main() -> int:
    """Measure each part, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1024, help="a multiple of 32")
    parser.add_argument("--part", choices=PARTS, help="measure only this part")
    parser.add_argument("--prompts", type=int, default=64, help="of a step, each answered 16 times")
    parser.add_argument("--longest", type=int, default=4096, help="tokens of the longest answer")
    parser.add_argument("--json", action="store_true", help="print one flat object")
    arguments = parser.parse_args()
    scale_batches.PROMPTS, scale_batches.LONGEST = arguments.prompts, arguments.longest
    if arguments.part:
        print(json.dumps(PARTS[arguments.part](arguments.ranks)))
        return 0
    figures: Figures = {"ranks": arguments.ranks}
    for part in PARTS:
        figures |= measured(part, arguments)
    if arguments.json:
        print(json.dumps(figures))
    else:
        show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
