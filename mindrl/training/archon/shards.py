"""FSDP2: each rank of a group keeps some rows of every weight and borrows the others to compute."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from mindrl.training.archon.experts import Mixture
from mindrl.training.archon.network import Network


def shard(network: Network, mesh: DeviceMesh, device_type: str, *, bf16: bool, stays: bool) -> None:
    """Cut the weights of a network over the ranks of a mesh, and give it memory for its own.

    Experts are cut over the ranks that have the same ones.

    Weights and gradients are float32; with `bf16` what is borrowed, and computed, is bfloat16.
    Gradients are sums, which every backend has, and never means: the weights of a loss add to 1.
    What `stays` borrowed behind a forward pass is given back behind an update. A collective over
    the mesh, and of experts over theirs.
    """
    numbers = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None,
        reduce_dtype=torch.float32,
        # Hidden states have the weights' type already, and angles keep theirs.
        cast_forward_inputs=False,
    )
    cut = partial(fully_shard, mp_policy=numbers, reshard_after_forward=not stays)
    for layer in network.layers:
        for mixture in [each for each in layer.modules() if isinstance(each, Mixture)]:
            cut(mixture.experts, mesh=mixture.meshes.data)
        cut(layer, mesh=mesh)
    # The weight of the head is read behind a forward pass.
    fully_shard(network, mesh=mesh, mp_policy=numbers, reshard_after_forward=False)
    for module in sharded(network):
        # Without this gloo and HCCL are asked for a reduction that neither has.
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    network.to_empty(device=device_type)
    # Weights have their final place once they were together.
    for module in sharded(network):
        module.unshard()
    give_back(network)


def give_back(network: nn.Module) -> None:
    """Let go of what is borrowed.

    Behind a pass without a backward pass the root would keep its weights, and the next pass would
    take them for those of after the step.
    """
    for module in sharded(network):
        module.reshard()


def sharded(network: nn.Module) -> Iterator[FSDPModule]:
    """Yield the modules that borrow weights."""
    yield from (module for module in network.modules() if isinstance(module, FSDPModule))
