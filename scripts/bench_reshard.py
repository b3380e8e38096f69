"""Compare the reshard with the methods of other systems on the same ranks.

    python scripts/bench_reshard.py [--repeats 5] [--bucket-mib 256] [--json results.json]

Four processes over gloo hold a dense and a mixture-of-experts model of more than 0.5 GB each and
move them between several pairs of layouts, each in these ways:

plan        this project: every rank receives the parts that it needs and does not hold
gather      (a) gather every logical tensor whole on every rank, in buckets, then shard it
parameter   (b) the same with one collective per tensor, broadcast between pipeline stages
limit       (c) one all_to_all_single of the plan's bytes on warm buffers
copies      the part missing in (c): the plan's copies inside the ranks and its packing

Prints for each: seconds (median), bytes received by the busiest rank, the peak of memory in
addition to both models, and the ratio to the plan's time. The first three must give equal rollout
weights.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from reshard_rivals import Gather, Tensors, buckets, rank
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import ModelDescription, MoeDescription
from mindrl.models.orientation import oriented
from mindrl.models.placement import Box, ShardingTable, index_of
from mindrl.resharding.exchange import Channel, Staging, messages_of
from mindrl.resharding.plan import ReshardPlan, Topology, Transfer, plan_reshard
from mindrl.resharding.reshard import Reshard
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.training.megatron.sharding import megatron_sharding

RANKS = 4

# A few layers with the widths of Qwen2.5-7B and Qwen3-30B-A3B.
DENSE = ModelDescription(
    model_type="qwen2",
    num_hidden_layers=2,
    hidden_size=3584,
    intermediate_size=18944,
    num_attention_heads=28,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=8192,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    attention_bias=True,
)
MOE = ModelDescription(
    model_type="qwen3_moe",
    num_hidden_layers=4,
    hidden_size=2048,
    intermediate_size=6144,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=8192,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    qk_norm=True,
    moe=MoeDescription(num_experts=16, num_experts_per_tok=4, intermediate_size=768),
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A model that is moved between two layouts."""

    name: str
    model: ModelDescription
    train: TrainLayout
    rollout: RolloutLayout


PAIRS = [
    Pair(
        name="dense TP4 to TP1", model=DENSE, train=TrainLayout(tp=4), rollout=RolloutLayout(dp=4)
    ),
    Pair(
        name="dense TP2 PP2 to TP4",
        model=DENSE,
        train=TrainLayout(tp=2, pp=2),
        rollout=RolloutLayout(tp=4),
    ),
    Pair(
        name="dense TP2 DP2 to TP4",
        model=DENSE,
        train=TrainLayout(tp=2, dp=2),
        rollout=RolloutLayout(tp=4),
    ),
    Pair(
        name="MoE EP4 to TP4", model=MOE, train=TrainLayout(dp=4, ep=4), rollout=RolloutLayout(tp=4)
    ),
    Pair(
        name="MoE EP2 TP2 to TP4 EP4",
        model=MOE,
        train=TrainLayout(tp=2, dp=2, ep=2),
        rollout=RolloutLayout(tp=4, ep=4),
    ),
    Pair(
        name="MoE EP4 PP1 to TP2 DP2",
        model=MOE,
        train=TrainLayout(dp=4, ep=4),
        rollout=RolloutLayout(tp=2, dp=2),
    ),
]


class Weights:
    """A rank's tensors on one side, as plain tensors in place."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    def read(self, name: str, box: Box) -> Tensor:
        """Return a box of a tensor."""
        return self.tensors[name][index_of(box)]

    def open(self, name: str) -> Tensor:
        """Return a tensor."""
        return self.tensors[name]

    def release(self, name: str) -> None:
        """Do nothing: the tensors are kept."""

    def close(self, name: str) -> None:
        """Do nothing: tensors are not packed."""


def local_tensors(table: ShardingTable, *, filled: bool) -> Tensors:
    """Create a rank's tensors; each element of a logical tensor has the same value on all ranks."""
    tensors = {
        name: torch.zeros(entry.shape, dtype=torch.bfloat16) for name, entry in table.items()
    }
    for name, entry in table.items() if filled else ():
        for placement in entry.placements:
            view = oriented(tensors[name], placement.local, placement.axes)
            first = sum(ord(letter) * place for place, letter in enumerate(placement.tensor, 1))
            axes = [
                torch.arange(start, stop) * (31 + 97 * dim)
                for dim, (start, stop) in enumerate(placement.source)
            ]
            grid = axes[0][:, None] + axes[1][None, :] if len(axes) == 2 else axes[0]
            view.copy_((grid + first) % 251)
    return tensors


def measure(run: Callable[[], None], repeats: int) -> tuple[float, int]:
    """Return the median seconds of the slowest rank, and the largest peak of extra memory."""
    run()
    seconds, peaks = [], []
    for _ in range(repeats):
        dist.barrier()
        before = reset_peak()
        start = time.perf_counter()
        run()
        took = torch.tensor([time.perf_counter() - start, float(peak_rss() - before)])
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        seconds.append(float(took[0]))
        peaks.append(int(took[1]))
    return statistics.median(seconds), max(peaks)


def reset_peak() -> int:
    """Reset this process's peak of resident memory; return the resident bytes."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def peak_rss() -> int:
    """Return the peak of resident memory since the last reset, in bytes."""
    return _status("VmHWM")


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith(field))
    return int(line.split()[1]) << 10


def ways(
    pair: Pair, plan: ReshardPlan, bucket_bytes: int
) -> Iterator[tuple[str, int, Callable[[], None]]]:
    """Yield each method: its name, the bytes that this rank receives, and a function to run it."""
    source = megatron_sharding(pair.model, pair.train, dtype="bfloat16")
    target = vllm_sharding(pair.model, pair.rollout, dtype="bfloat16")
    ours = local_tensors(source.table(rank()), filled=True)
    expected = local_tensors(target.table(rank()), filled=True)
    taken = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}

    def checked(run: Callable[[], None]) -> Callable[[], None]:
        for tensor in taken.values():
            tensor.zero_()
        run()
        wrong = [name for name in taken if not torch.equal(taken[name], expected[name])]
        assert not wrong, wrong[:5]
        return run

    group = dist.group.WORLD
    assert group is not None
    store = dist.PrefixStore(pair.name, dist.distributed_c10d._get_default_store())
    reshard = Reshard(
        plan,
        Channel(group, store, torch.device("cpu"), 300.0),
        ours,
        taken,
    )
    received = int(plan.received[rank()])
    yield "plan", received, checked(lambda: reshard.run(Weights(ours), Weights(taken)))
    for name, groups in (
        ("gather", buckets(pair.model, source, bucket_bytes)),
        ("parameter", [[tensor] for tensor in logical_shapes(pair.model)]),
    ):
        gather = Gather(pair.model, (source, target), groups)
        run = checked(lambda gather=gather: gather.run(ours, taken))  # type: ignore[misc]
        yield name, gather.received, run
    sends, receives = plan.pair_bytes[rank()].tolist(), plan.pair_bytes[:, rank()].tolist()
    # Not zeros: all untouched pages of a calloc are the same page.
    outgoing = torch.ones(sum(sends), dtype=torch.uint8)
    incoming = torch.ones(sum(receives), dtype=torch.uint8)
    yield (
        "limit",
        received,
        lambda: dist.all_to_all_single(incoming, outgoing, receives, sends),
    )
    yield "copies", 0, lambda: copy_only(reshard, Weights(ours), Weights(taken))


def copy_only(reshard: Reshard, source: Weights, target: Weights) -> None:
    """Do the memory operations of a reshard without messages."""
    device = torch.device("cpu")

    def read(transfer: Transfer) -> Tensor:
        place = transfer.source
        return oriented(source.open(place.name), place.box, place.axes)

    def write(transfer: Transfer) -> Tensor:
        place = transfer.slice.target
        return oriented(target.open(place.name), place.box, place.axes)

    out, into = Staging(device), Staging(device)
    for step in reshard.rounds:
        for transfer in step.copies:
            write(transfer).copy_(read(transfer))
        for message in messages_of(step.sends, reshard.wire_dtype, read, out):
            copy_pairs((chunk, read(transfer)) for transfer, chunk in message.staged_chunks())
        for message in messages_of(step.receives, reshard.wire_dtype, write, into):
            copy_pairs((write(transfer), chunk) for transfer, chunk in message.staged_chunks())


def copy_pairs(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second of each pair into the first."""
    for target, source in pairs:
        target.copy_(source)


def measure_pair(pair: Pair, repeats: int, bucket_bytes: int) -> dict[str, object]:
    """Measure all methods for one pair; every rank returns the same values."""
    source = megatron_sharding(pair.model, pair.train, dtype="bfloat16")
    target = vllm_sharding(pair.model, pair.rollout, dtype="bfloat16")
    start = time.perf_counter()
    plan = plan_reshard(source, target, Topology(ranks_per_node=RANKS), bucket_bytes=bucket_bytes)
    planned = time.perf_counter() - start
    results: dict[str, dict[str, float]] = {}
    for name, received, run in ways(pair, plan, bucket_bytes):
        most = torch.tensor(received)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        seconds, peak = measure(run, repeats)
        results[name] = {"seconds": seconds, "received": float(most), "peak_extra": float(peak)}
    parameters = sum(torch.Size(shape).numel() for shape in logical_shapes(pair.model).values())
    return {
        "pair": pair.name,
        "model_bytes": 2 * parameters,
        "plan_seconds": planned,
        "rounds": plan.rounds,
        "received_over_bound": float(plan.received.sum() / max(1, plan.lower_bound.sum())),
        "lower_bound_total": int(plan.lower_bound.sum()),
        "ways": results,
    }


def work(index: int, port: int, arguments: argparse.Namespace, output: str) -> None:
    """Run one rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=index, world_size=RANKS
    )
    results = [
        measure_pair(pair, arguments.repeats, arguments.bucket_mib << 20)
        for pair in PAIRS
        if arguments.only in pair.name
    ]
    if index == 0:
        Path(output).write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()


def show(results: list[dict[str, object]]) -> None:
    """Print a table."""
    table = Table(title=f"{RANKS} gloo ranks, bfloat16, median of the slowest rank")
    for column in ("pair", "way", "seconds", "GB/s", "received", "peak extra", "of plan's time"):
        table.add_column(column, justify="left" if column in ("pair", "way") else "right")
    for result in results:
        measured: dict[str, dict[str, float]] = result["ways"]  # type: ignore[assignment]
        own = measured["plan"]["seconds"]
        for name, way in measured.items():
            rate = result["lower_bound_total"] / way["seconds"] / 1e9  # type: ignore[operator]
            table.add_row(
                str(result["pair"]) if name == "plan" else "",
                name,
                f"{way['seconds']:.3f}",
                f"{rate:.2f}",
                f"{way['received'] / 1e6:.0f} MB",
                f"{way['peak_extra'] / 1e6:.0f} MB",
                f"{way['seconds'] / own:.2f}",
            )
        table.add_section()
    console = Console(width=110)
    console.print(table)
    for result in results:
        console.print(
            f"{result['pair']}: model {result['model_bytes'] / 1e9:.2f} GB, "  # type: ignore[operator]
            f"received over lower bound {result['received_over_bound']:.2f}, planned in "
            f"{result['plan_seconds']:.2f} s, {result['rounds']} rounds",
            highlight=False,
        )


def main() -> int:
    """Start the ranks, and print the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs of each method")
    parser.add_argument("--bucket-mib", type=int, default=256, help="limit of messages in flight")
    parser.add_argument("--only", default="", help="only pairs with this text in their name")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        output = f"{folder}/results.json"
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = store.port
        del store
        torch.multiprocessing.spawn(work, (port, arguments, output), nprocs=RANKS)
        results = json.loads(Path(output).read_text(encoding="utf-8"))
    show(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
