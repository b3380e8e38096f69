"""The self-test's worker on one rank. Imported only inside a prepared worker process."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.batch.rollouts import Responses
from mindrl.batch.sequences import Logprobs, Sequences
from mindrl.errors import ResidueError
from mindrl.launch.worker import build_actor_hybrid_worker
from mindrl.memory.schedule import Phase, Region
from mindrl.observability.units import MIB, mib_text
from mindrl.platform.copies import Copies
from mindrl.platform.device import Platform
from mindrl.platform.device_memory import device_account, give_back_unused
from mindrl.platform.host_arena import HostArena
from mindrl.preflight.run_shardings import RunPlan
from mindrl.rollout.engine import Sampling
from mindrl.workers.actor_hybrid_worker import ActorHybridWorker
from mindrl.workers.device_ledger import DeviceLedger
from mindrl.workers.device_regions import StoredRegion

Figures = dict[str, float]
"""By name; the suffix is the unit."""

_PART, _REPEATS = MIB, 3
"""Elements per rank in a collective, and repeats of each timing."""


class TestedWorker:
    """A rank that tests its device's parts first, and builds a worker on request."""

    worker: ActorHybridWorker

    def __init__(self, plan: RunPlan, platform: Platform) -> None:
        """Store what to build; the process group already exists."""
        self.plan, self.platform = plan, platform
        self.device = torch.device(platform.device_type)
        self.nbytes = 64 * MIB if platform.kind == "cpu" else 512 * MIB

    def collectives(self) -> Figures:
        """Compare collectives and messages between all ranks with their known results.

        The values are small integers, so the sums are exact.
        """
        ranks, rank = dist.get_world_size(), dist.get_rank()
        numbers_R = torch.arange(ranks, device=self.device)[:, None]
        all_RS = torch.arange(ranks * _PART, device=self.device).view(ranks, -1) % 1021 + numbers_R
        mine_S, sent_RS = all_RS[rank].float(), (all_RS + 1024 * rank).float()
        sum_S, scattered_S = mine_S.clone(), torch.zeros_like(mine_S)
        gathered_RS, swapped_RS = torch.zeros_like(sent_RS), torch.zeros_like(sent_RS)
        dist.all_reduce(sum_S)
        dist.all_gather_into_tensor(gathered_RS.view(-1), mine_S)
        dist.reduce_scatter_tensor(scattered_S, sent_RS.view(-1))
        dist.all_to_all_single(swapped_RS.view(-1), sent_RS.view(-1))
        came_RS = all_RS[rank] + 1024 * numbers_R
        differences = [
            sum_S - all_RS.sum(dim=0),
            gathered_RS - all_RS,
            scattered_S - came_RS.sum(dim=0),
            swapped_RS - came_RS,
            _from_neighbour(mine_S) - all_RS[rank - 1],
        ]
        seconds = min(_seconds(partial(dist.all_reduce, mine_S), mine_S) for _ in range(_REPEATS))
        return {
            "all_reduce_gb_per_second": mine_S.nbytes / seconds / 1e9,
            "max_difference": float(torch.cat([each.view(-1) for each in differences]).abs().max()),
        }

    def copies(self) -> Figures:
        """Copy bytes to pinned host memory and back, on a separate stream."""
        there, expected = self._pattern(self.device), self._pattern(torch.device("cpu"))
        arena = HostArena(self.nbytes, device_type=self.device.type)
        host, copies = arena.take(self.nbytes).parts, Copies(self.device.type)
        sizes = [len(part) for part in host]
        to_host = _seconds(partial(_copy, copies, host, there.split_with_sizes(sizes)))
        arrived = torch.cat(host)
        there.zero_()
        to_device = _seconds(partial(_copy, copies, there.split_with_sizes(sizes), host))
        return self._rates(to_host, to_device) | {
            "max_difference": max(_difference(each, expected) for each in (arrived, there.cpu()))
        }

    def region(self) -> Figures:
        """Offload a region and onload it again.

        Raises:
            ResidueError: Offloading did not free the device's memory.
        """
        there, expected = self._pattern(self.device), self._pattern(torch.device("cpu"))
        arena, ledger = HostArena(self.nbytes, device_type=self.device.type), DeviceLedger(None)
        ledger.add(Region.ACTOR_WEIGHTS, StoredRegion([there], arena, self.device.type))
        give_back_unused(self.device.type)
        before = device_account(self.device.type)
        to_host = _seconds(partial(ledger.offload, Region.ACTOR_WEIGHTS))
        give_back_unused(self.device.type)
        after = device_account(self.device.type)
        if before and after and before.taken - after.taken < self.nbytes:
            raise ResidueError(
                f"offloading a region of {mib_text(self.nbytes)} did not free the device's "
                f"memory: {mib_text(before.taken)} in use before, {mib_text(after.taken)} after"
            )
        to_device = _seconds(partial(ledger.onload, Region.ACTOR_WEIGHTS))
        difference = _difference(there.cpu(), expected)
        return self._rates(to_host, to_device) | {"max_difference": difference}

    def build(self) -> Figures:
        """Build trainer and engine as a run does. A collective."""
        self.worker = build_actor_hybrid_worker(self.plan, self.platform)
        return {}

    def reshard(self) -> Figures:
        """Copy the trainer's weights into the engine, and compare each slice with its source.

        Raises:
            ReshardError: A slice differs.
        """
        self.worker.sharding_manager.enter(Phase.ROLLOUT)
        metrics = self.worker.flush_metrics()
        names = ("sent", "received", "local")
        return {f"{name}_bytes": metrics[f"bytes/reshard_{name}"] for name in names}

    def generate_sequences(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> Responses:
        """Generate responses: see `ActorHybridWorker`."""
        return self.worker.generate_sequences(prompts, sampling, seeds)

    def compute_log_prob(self, sequences: Sequences) -> Logprobs | None:
        """Compute log-probs: see `ActorHybridWorker`."""
        return self.worker.compute_log_prob(sequences)

    def _pattern(self, device: torch.device) -> Tensor:
        """Return bytes in which every 4-byte word differs; the device may still be writing them."""
        words = torch.arange(self.nbytes // 4, dtype=torch.int32, device=device)
        return words.mul_(3).view(torch.uint8)

    def _rates(self, to_host: float, to_device: float) -> Figures:
        return {
            "to_host_gb_per_second": self.nbytes / to_host / 1e9,
            "to_device_gb_per_second": self.nbytes / to_device / 1e9,
        }


def _from_neighbour(mine_S: Tensor) -> Tensor:
    """Send to the next rank, and return what the previous one sent."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if ranks == 1:
        return mine_S
    came_S = torch.zeros_like(mine_S)
    send = dist.P2POp(dist.isend, mine_S, (rank + 1) % ranks)
    receive = dist.P2POp(dist.irecv, came_S, (rank - 1) % ranks)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    return came_S


def _copy(copies: Copies, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    copies.start(zip(targets, sources, strict=True), lambda: None)
    copies.finish()


def _seconds(action: Callable[[], object], result: Tensor | None = None) -> float:
    """Return the seconds of an action; reading `result` waits for its end."""
    began = time.perf_counter()
    action()
    if result is not None:
        result[0].item()
    return time.perf_counter() - began


def _difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference of two tensors, compared as int32 words."""
    return float((found.view(torch.int32) - expected.view(torch.int32)).abs().max())
