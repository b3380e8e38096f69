"""Compare the two ways in which weights can go from a train job to a rollout job.

    python scripts/bench_two_jobs.py [--repeats 5] [--json results.json]

Two processes have a dense model of 1 GiB in bfloat16, laid out as by Megatron and as by vLLM.
`folder` is what two jobs do: the train job exports the weights, syncs them, makes checksums and a
marker; the rollout job verifies the checksums and fills its engine. `group` is a transfer over gloo
in a group that is already there, as between the two sides of one run; `joining` is the time to make
such a group, after each start of either job. All weights are compared at the end.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from bench_reshard import DENSE, Weights, local_tensors
from torch.multiprocessing.spawn import spawn

from mindrl.checkpoint.export import exported_model
from mindrl.checkpoint.readers import fill, folder_reader
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.sharding import elsewhere, full_sharding
from mindrl.platform.device import PLATFORMS
from mindrl.resharding.exchange import Channel
from mindrl.resharding.plan import Topology, plan_reshard
from mindrl.resharding.reshard import Reshard
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.spool.weights import WeightFolders
from mindrl.training.megatron.sharding import megatron_sharding
from mindrl.workers.weight_links import LinkEnd, LinkRoutes

SECONDS = 300.0
TRAIN, ROLLOUT = 0, 1
Figures = dict[str, list[float]]


class Side:
    """One of the two processes, with its part of the model."""

    def __init__(self, rank: int, folder: Path, store: dist.TCPStore) -> None:
        self.rank, self.folder, self.store, self.exports = rank, folder, store, 0
        self.alone = dist.new_group([TRAIN])
        self.layouts = (
            megatron_sharding(DENSE, TrainLayout(), dtype="bfloat16"),
            vllm_sharding(DENSE, RolloutLayout(), dtype="bfloat16"),
        )
        self.shardings = tuple(
            elsewhere(each, first_rank=at, world_size=2) for at, each in enumerate(self.layouts)
        )
        table = self.shardings[rank].table(rank)
        self.tensors = local_tensors(table, filled=True)
        self.found = {name: torch.zeros_like(each) for name, each in self.tensors.items()}
        self.end = LinkEnd(platform=PLATFORMS["cpu"], routes=self.routes(), rank=rank)

    def routes(self) -> LinkRoutes:
        """Return the routes of a link between both."""
        source, target = self.shardings
        plan = plan_reshard(source, target, Topology(ranks_per_node=2))
        return LinkRoutes(
            source=source,
            target=target,
            plan_of=lambda _: plan,
            training_ranks=1,
            replicas=1,
            timeout_seconds=SECONDS,
            verify="off",
        )

    def group(self, repeat: int, figures: Figures) -> None:
        """Join a group, then send or receive the weights twice: the first warms buffers up."""
        began = time.perf_counter()
        link = self.end.join(self.store, 0, repeat + 1)
        figures["joining"].append(time.perf_counter() - began)
        for _ in range(2):
            dist.barrier()
            began = time.perf_counter()
            if self.rank == TRAIN:
                link.run(Weights(self.tensors))
            else:
                link.run(Weights({}), Weights(self.found))
            dist.barrier()
            seconds = time.perf_counter() - began
        figures["group"].append(seconds)
        link.close()
        self.check()

    def folders(self, repeat: int, figures: Figures) -> None:
        """Publish the weights, then verify and load them."""
        folders, times = WeightFolders(self.folder / "weights"), [0.0, 0.0, 0.0]
        if self.rank == TRAIN:
            began = time.perf_counter()
            folders.publish(repeat, self.export)
            times[0] = time.perf_counter() - began
        dist.barrier()
        if self.rank == ROLLOUT:
            began = time.perf_counter()
            weights = folders.find(repeat)
            assert weights is not None
            weights.verify()
            times[1] = time.perf_counter() - began
            began = time.perf_counter()
            with ExitStack() as stack:
                read = folder_reader(str(weights.folder), stack)
                for name, entry in self.shardings[ROLLOUT].table(ROLLOUT).items():
                    fill(self.found[name], entry, read)
            times[2] = time.perf_counter() - began
        dist.barrier()
        self.check()
        taken = torch.tensor(times)
        dist.all_reduce(taken)
        for name, seconds in zip(("publish", "verify", "load"), taken.tolist(), strict=True):
            figures[name].append(seconds)
        figures["folder"].append(float(taken.sum()))
        if self.rank == TRAIN:
            folders.forget(repeat + 1)

    def export(self, target: Path) -> None:
        """Write the weights as a run does."""
        assert self.alone is not None, "the train job exports"
        self.exports += 1
        store = dist.PrefixStore(f"export {self.exports}", self.store)
        channel = Channel(self.alone, store, torch.device("cpu"), SECONDS)
        whole = full_sharding(DENSE, world_size=1, holders=[0], dtype="bfloat16")
        plan = plan_reshard(self.layouts[TRAIN], whole, Topology(ranks_per_node=1))
        table, model = whole.table(0), str(self.folder / "model")
        with exported_model(model, target, table, dtype="bfloat16") as sink:
            Reshard(plan, channel, self.tensors, table).run(Weights(self.tensors), sink)

    def check(self) -> None:
        """Refuse weights that did not arrive."""
        if self.rank == ROLLOUT:
            wrong = [n for n, each in self.found.items() if not torch.equal(each, self.tensors[n])]
            assert not wrong, wrong[:5]
            for each in self.found.values():
                each.zero_()


def work(rank: int, port: int, repeats: int, folder: str) -> None:
    """Run one of the two processes."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=SECONDS))
    dist.init_process_group("gloo", store=store.clone(), rank=rank, world_size=2)
    side, figures = Side(rank, Path(folder), store), defaultdict[str, list[float]](list)
    for repeat in range(repeats + 1):
        side.folders(repeat, figures)
        side.group(repeat, figures)
    if rank == ROLLOUT:
        # The first repeat only warms caches up.
        found = {name: values[1:] for name, values in figures.items()}
        Path(folder, "figures.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()


def main() -> int:
    """Start both processes, and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs of each way")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        model.mkdir()
        (model / "config.json").write_text(json.dumps(asdict(DENSE)), encoding="utf-8")
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        spawn(work, (store.port, options.repeats, folder), nprocs=2)
        figures: Figures = json.loads(Path(folder, "figures.json").read_text(encoding="utf-8"))
    for name in ("publish", "verify", "load", "folder", "group", "joining"):
        values = figures[name]
        of = f"median of {min(values):.3f} to {max(values):.3f}"
        print(f"{name:<10} {statistics.median(values):6.3f} s  ({of})")
    ratio = statistics.median(figures["folder"]) / statistics.median(figures["group"])
    print(f"a folder takes {ratio:.1f} times as long as a transfer in a group")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
