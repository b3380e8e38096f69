"""What tests of memory call in forked processes: what is kept for a backward pass, and borrowed."""

import ctypes
import gc
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from archon_probe import build
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.utils._python_dispatch import TorchDispatchMode
from training_messages import Case, Course
from training_shares import share

from mindrl.models.adapters import LowRank
from mindrl.models.description import ModelDescription
from mindrl.training.archon.network import Network
from mindrl.training.archon.shards import give_back, sharded
from mindrl.training.packs import Pack


class Saved:
    """The bytes of activations that autograd has saved, now and at the most, each storage once."""

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        self.networks = list(networks)
        self.uses: Counter[int] = Counter()
        self.now = self.most = 0

    def pack(self, tensor: Tensor) -> "Tensor | _Activation":
        """Count what is no weight; those have other storages while they are whole."""
        weights = (each for network in self.networks for each in network.parameters())
        if any(each.data_ptr() == tensor.data_ptr() for each in weights):
            return tensor
        return _Activation(self, tensor)

    def take(self, place: int, nbytes: int) -> None:
        self.uses[place] += 1
        if self.uses[place] == 1:
            self.now += nbytes
            self.most = max(self.most, self.now)

    def drop(self, place: int, nbytes: int) -> None:
        self.uses[place] -= 1
        if self.uses[place] == 0:
            self.now -= nbytes


class _Activation:
    def __init__(self, saved: Saved, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.saved, self.tensor = saved, tensor.detach()
        self.storage = storage.data_ptr(), storage.nbytes()
        saved.take(*self.storage)

    def __del__(self) -> None:
        self.saved.drop(*self.storage)


def _unpack(found: Tensor | _Activation) -> Tensor:
    return found.tensor if isinstance(found, _Activation) else found


def most_saved(cases: list[Case], course: Course) -> list[int]:
    """Take an update of each model; returns the most bytes that were saved at a time."""
    found = []
    for case in cases:
        model = build(case, course.optimizer)
        saved = Saved(model.networks.values())
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, _unpack):
            for minibatch in course.minibatches:
                mine = share(case, minibatch)
                model.train_step(mine, course.micro_batching, course.loss)
        assert saved.now == 0
        found.append(saved.most)
    return found


def kept_of_layers(modes: list[str], model: ModelDescription, tokens: int) -> list[int]:
    """Return by how much a forward pass with gradients grows what the process has allocated."""
    bench, found = _bench(), []
    for mode in modes:
        network = bench.network_of(model, bench.MODES[mode], tokens)
        pack = bench.pack_of(tokens)
        bench.step(network, pack)
        before = _allocated()
        hidden_1SH = network(pack.tokens_1S, pack)
        found.append(_allocated() - before)
        hidden_1SH.sum().backward()
        give_back(network)
    return found


class _Peak(TorchDispatchMode):
    """The most that the process has allocated before and behind any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, operation: Any, _: Any, given: Any = (), named: Any = None) -> Any:
        self.most = max(self.most, _allocated())
        made = operation(*given, **(named or {}))
        self.most = max(self.most, _allocated())
        return made


class _Room:
    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)


class _Gather(_Room, AllGather):
    """Takes this rank's rows for all: gloo copies, and lets go of that when its threads come to."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, **_: Any) -> None:
        for part in output_tensor.view(group.size(), -1):
            # This rank's own is there already.
            if part.data_ptr() != input_tensor.data_ptr():
                part.copy_(input_tensor)


class _Reduce(_Room, ReduceScatter):
    """Takes this rank's own gradients for all, as `_Gather` does."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **_: Any) -> None:
        output_tensor.copy_(input_tensor[: len(output_tensor)])


def most_borrowed(
    vocabularies: list[int], bf16: bool, tokens: int, low_rank: LowRank | None = None
) -> list[tuple[int, int]]:
    """Return what a pass over few tokens needs at the most: one that reads, and one that learns."""
    bench, found = _bench(), []
    for vocabulary in vocabularies:
        model = replace(bench.description(6), vocab_size=vocabulary)
        ranks = dist.get_world_size()
        network = bench.network_of(model, {}, tokens, dp=ranks, bf16=bf16, low_rank=low_rank)
        for module in sharded(network):
            module.set_custom_all_gather(_Gather())
            module.set_custom_reduce_scatter(_Reduce())
        pack = bench.pack_of(tokens)
        # The first one makes room for what stays.
        _, reading, *learning = (
            _most_of_a_pass(network, pack, learns=learns) for learns in (True, False, True, True)
        )
        found.append((reading, max(learning)))
    return found


def _most_of_a_pass(network: Network, pack: Pack[Any], *, learns: bool) -> int:
    # No rank is behind with a pass before, nor is what that left.
    dist.barrier()
    gc.collect()
    before = _allocated()
    with _Peak() as peak, torch.set_grad_enabled(learns):
        hidden_1SH = network(pack.tokens_1S, pack)
        if learns:
            (hidden_1SH @ network.head_weight().T).logsumexp(-1).mean().backward()
    give_back(network)
    return peak.most - before


def _bench() -> Any:
    sys.path.append(str(Path(__file__).parents[2] / "scripts"))
    return import_module("bench_recompute")


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc: sizes; the fifth of mapped blocks, the eighth of others."""

    _fields_ = tuple((f"field_{at}", ctypes.c_size_t) for at in range(10))


def _allocated() -> int:
    """Return the bytes that the C library has given out, in mapped blocks and others."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    found = libc.mallinfo2()
    return int(found.field_4 + found.field_7)
