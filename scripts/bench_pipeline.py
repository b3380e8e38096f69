"""Measure how long the stages of a pipeline wait for each other with each schedule.

    python scripts/bench_pipeline.py [--stages 2 4] [--packs 8] [--milliseconds 100]

Stages are processes over gloo that run the engine's pipeline, `training/archon/pipeline.py`, but
their layers sleep instead of computing: equally long for the forward pass, the gradients of
activations, and the gradients of weights. So the number of cores has no influence. Prints the share
of an update in which a stage is idle, and the published value (1F1B and interleaved: arXiv
2104.04473; zero bubbles with three parts of equal length: 2401.10241 and 2405.15362).
"""

import argparse
import os
import time
from statistics import median
from types import SimpleNamespace
from typing import Any, get_args

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from mindrl.config.archon import Schedule
from mindrl.layouts.layout import TrainLayout
from mindrl.platform.rendezvous import listen
from mindrl.training.archon.pipeline import Hidden, Pipeline

WIDTH, UPDATES = 8, 4


class Slept(torch.autograd.Function):
    """Return the input after sleeping in the forward pass, and again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, forward: float, backward: float) -> Tensor:
        """Sleep, and store the time of the backward pass."""
        ctx.seconds = backward
        time.sleep(forward)
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Sleep."""
        time.sleep(ctx.seconds)
        return gradient, None, None


class Chunk(nn.Module):
    """A chunk of a model that sleeps instead of computing."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, given: Tensor, _: SimpleNamespace) -> Tensor:
        """Sleep; the gradient of the weight sleeps separately."""
        hidden = given if given.dim() == 3 else given[..., None].expand(-1, -1, WIDTH) * 1.0
        weight = Slept.apply(self.weight, 0.0, self.seconds)
        return Slept.apply(hidden.requires_grad_(), self.seconds, self.seconds) * weight

    def head_weight(self) -> Tensor:
        """Return a placeholder for the head's weight, which is not used."""
        return self.weight


def layout_of(schedule: Schedule, stages: int) -> TrainLayout:
    """Return the number of chunks of a schedule, two if it may have several."""
    chunks = 1 if schedule == "1F1B" else 2
    return TrainLayout(pp=stages, vpp=chunks, folds=schedule == "ZBVZeroBubble")


def expected(schedule: Schedule, stages: int, packs: int) -> float:
    """Return the published share."""
    waits = {"1F1B": 3.0, "Interleaved1F1B": 1.5, "InterleavedZeroBubble": 0.5}
    wait = waits.get(schedule, 0.0) * (stages - 1)
    return wait / (3 * packs + wait)


def measure(rank: int, stages: int, packs: int, seconds: float, port: int, shown: Any) -> None:
    """Run one stage."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=stages)
    for schedule in get_args(Schedule):
        layout = layout_of(schedule, stages)
        pipeline = Pipeline(
            networks={at: Chunk(seconds / layout.vpp) for at in layout.chunks_of(rank)},
            layout=layout,
            schedule=schedule,
            group=dist.group.WORLD,
            hidden=Hidden(size=WIDTH, dtype=torch.float32, ranks=1),
            device_type="cpu",
        )
        given = [SimpleNamespace(tokens_1S=torch.zeros(1, 4))] * packs
        times = []
        for _ in range(UPDATES + 1):
            dist.barrier()
            start = time.perf_counter()
            pipeline.update(given, lambda _, hidden_1SH, __: hidden_1SH.sum())
            dist.barrier()
            times.append(time.perf_counter() - start)
        if rank == 0:
            shown[schedule] = 1 - 3 * seconds * packs / median(times[1:])
    dist.destroy_process_group()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--packs", type=int, default=8)
    parser.add_argument("--milliseconds", type=float, default=100)
    asked = parser.parse_args()
    table = Table("stages", "schedule", "waiting", "as published")
    for stages in asked.stages:
        with listen("127.0.0.1") as free:
            port = free.getsockname()[1]
        with mp.Manager() as manager:
            shown = manager.dict()
            given = (stages, asked.packs, asked.milliseconds / 1000, port, shown)
            mp.spawn(measure, given, nprocs=stages)
            for schedule, share in shown.items():
                published = expected(schedule, stages, asked.packs)
                table.add_row(str(stages), schedule, f"{share:.1%}", f"{published:.1%}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
